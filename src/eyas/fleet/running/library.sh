# Functions of every script that eyas runs on a machine. POSIX sh, coreutils, util-linux, grep and awk.
# shellcheck shell=sh

fail() { # CODE TEXT
    printf '%s\n' "$2" >&2
    exit "$1"
}

enter() { # FOLDER: make it and go there; `run` and `logs` in it are its owner's alone
    if ! { mkdir -p -- "$1" && cd -- "$1" && (umask 077 && mkdir -p run logs); }; then
        fail 1 "cannot use the folder $1"
    fi
}

write() { # PATH MODE, the content on standard input
    mkdir -p -- "$(dirname -- "$1")" && cat >"$1.new" && chmod "$2" -- "$1.new" && mv -f -- "$1.new" "$1"
}

listens() { # PORT [ADDRESSES]: whether a server has it; on any address, or those that an expression of digits means
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        grep -qE " ${2:-[0-9A-F]*}:$(printf %04X "$1") [0-9A-F]*:0000 0A "
}

centiseconds() { # since boot
    read -r up _ </proc/uptime
    printf '%s\n' "${up%.*}${up#*.}"
}

give_back() { # KIB PLACE...: the page cache of the files there, if less than KIB are free
    [ "$(awk '/^MemFree:/ { print $2 }' /proc/meminfo)" -lt "$1" ] || return 0
    shift
    for place; do
        for file in "$place" "$place"/*; do
            if [ -f "$file" ] && [ -r "$file" ]; then
                dd if="$file" iflag=nocache count=0 2>/dev/null # POSIX_FADV_DONTNEED on all of it; reads nothing
            fi
        done
    done
    return 0
}

# -- processes ---------------------------------------------------------------------------------------------------------

boot() { # which boot of this machine it is
    cat /proc/sys/kernel/random/boot_id
}

process() { # PID: its state and kernel start time; nothing where there is none
    line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # shellcheck disable=SC2086 # numbers and one letter, after a name that may hold anything
    set -- ${line##*) }
    printf '%s %s\n' "$1" "${20}"
}

is_alive() { # PID START BOOT
    [ "$3" = "$(boot)" ] || return 1
    case $(process "$1") in
        Z* | X*) return 1 ;;
        *" $2") return 0 ;;
    esac
    return 1
}

members() { # TAG PID START: all living processes of a launch
    # By the tag; a program that writes its own title over its environment is found by its session. The number of a
    # session is not given to a new process as long as the session has members.
    grep -lzsxF -- "LAUNCHED_BY_EYAS=$1" /proc/[0-9]*/environ | cut -d / -f 3
    [ "$2" -gt 1 ] || return 0
    case $(process "$2") in
        '' | *" $3") ;;
        *) return 0 ;;
    esac
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$2" '
        { pid = $1; sub(/^.*\) /, ""); if ($4 == session && $1 != "Z" && $1 != "X") print pid }'
}

end() { # TAG PID START CENTISECONDS: TERM to all members, KILL to those that are left then
    pids=$(members "$1" "$2" "$3")
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086
    kill -TERM $pids 2>/dev/null
    until=$(($(centiseconds) + $4))
    while pids=$(members "$1" "$2" "$3") && [ -n "$pids" ] && [ "$(centiseconds)" -lt "$until" ]; do
        sleep 0.05
    done
    until=$(($(centiseconds) + 500))
    while [ -n "$pids" ]; do
        # shellcheck disable=SC2086
        kill -KILL $pids 2>/dev/null
        [ "$(centiseconds)" -lt "$until" ] || fail 5 "does not end: process $pids"
        sleep 0.05
        pids=$(members "$1" "$2" "$3")
    done
}

start_process() { # LAUNCH TAG COMMAND...: in a session of its own; prints what it is known by
    launch=$1 tag=$2
    shift 2
    if read -r owner pid start boot 2>/dev/null <"run/$launch" && is_alive "$pid" "$start" "$boot"; then
        [ "$owner" = "$tag" ] || fail 3 "another eyas runs $launch in $PWD as process $pid"
        printf 'process %s %s %s\n' "$pid" "$start" "$boot"
        return
    fi
    [ ! -s "logs/$launch.log" ] || mv -f "logs/$launch.log" "logs/$launch.log.1"
    (umask 077 && : >"logs/$launch.log")
    rm -f "run/$launch.exit"
    # shellcheck disable=SC2016
    LAUNCHED_BY_EYAS=$tag setsid sh -c '"$@"; code=$?; echo "$code" >"$0"; exit "$code"' \
        "$PWD/run/$launch.exit" "$@" </dev/null >>"logs/$launch.log" 2>&1 &
    pid=$!
    started=$(process "$pid")
    printf '%s %s %s %s\n' "$tag" "$pid" "${started#* }" "$(boot)" | write "run/$launch" 600 || exit 1
    printf 'process %s %s %s\n' "$pid" "${started#* }" "$(boot)"
}

process_state() { # INDEX LAUNCH LOG_BYTES PID START BOOT
    trim "logs/$2.log" "$3"
    if is_alive "$4" "$5" "$6"; then
        echo "$1 alive"
    else
        echo "$1 ended $(cat "run/$2.exit" 2>/dev/null)"
    fi
}

end_process() { # LAUNCH TAG CENTISECONDS [PID START]
    launch=$1 tag=$2 patience=$3
    shift 3
    read -r owner pid start _ 2>/dev/null <"run/$launch" || owner=
    if [ $# -lt 2 ] && [ "$owner" = "$tag" ]; then
        set -- "$pid" "$start"
    fi
    end "$tag" "${1:-0}" "${2:-0}" "$patience"
    [ "$owner" != "$tag" ] || rm -f "run/$launch" "run/$launch.exit"
}

# -- logs --------------------------------------------------------------------------------------------------------------

trim() { # FILE BYTES: the end of a longer one becomes FILE.1; its writer appends and goes on
    size=$(wc -c 2>/dev/null <"$1") || return 0
    [ "$size" -gt "$2" ] || return 0
    # No more than a slow disk takes while it is waited for. A full one gets its room back.
    (umask 077 && tail -c 8388608 -- "$1" >"$1.1") 2>/dev/null
    : >"$1"
}

show_file() { # FILE OFFSET MAX: where it ends now, then what is between
    size=$(wc -c 2>/dev/null <"$1") || size=0
    from=$2
    [ "$from" -le "$size" ] || from=0
    [ "$((size - from))" -le "$3" ] || from=$((size - $3))
    echo "$size"
    [ "$size" -eq "$from" ] || tail -c "+$((from + 1))" -- "$1" | head -c "$((size - from))"
}

show_container() { # NAME SINCE MAX: the time now, then what was written since
    now=$(date +%s.%N)
    echo "$now"
    docker logs --since "$2" --until "$now" "$1" 2>&1 | tail -c "$3"
}

# -- containers --------------------------------------------------------------------------------------------------------

owner_of() { # NAME: the token of the deployment that a container belongs to; 1: there is no such container
    if found=$(docker inspect -f '{{index .Config.Labels "eyas.deployment"}}' "$1" 2>&1); then
        printf '%s\n' "$found"
        return
    fi
    case $found in
        *[Nn]"o such"*) return 1 ;;
        *) fail 6 "docker: $found" ;;
    esac
}

start_container() { # LAUNCH TOKEN NAME ARGUMENT...: of docker run; prints what it is known by
    launch=$1 token=$2 name=$3
    shift 3
    if owner=$(owner_of "$name"); then
        [ "$owner" = "$token" ] || fail 3 "a container $name exists and is none of this deployment's: docker rm -f $name"
        id=$(docker inspect -f '{{.State.Running}} {{.Id}}' "$name")
        [ "${id#true }" = "$id" ] || { printf 'container %s\n' "${id#true }" && return; }
        end_container "$launch" "$token" "$name" 0
    elif [ $? -ne 1 ]; then
        exit 6
    fi
    id=$(docker run -d --name "$name" --label "eyas.deployment=$token" \
        --log-driver local --log-opt max-size=64m --log-opt max-file=2 "$@") || exit 7
    printf 'container %s\n' "$id"
}

container_state() { # INDEX ID
    if found=$(docker inspect -f '{{.State.Running}} {{.State.ExitCode}}' "$2" 2>&1); then
        [ "${found#true }" = "$found" ] && echo "$1 ended ${found#false }" || echo "$1 alive"
    else
        case $found in
            *[Nn]"o such"*) echo "$1 ended" ;;
            *) echo "$1 unknown docker: $(printf %s "$found" | tail -n 1)" ;;
        esac
    fi
}

end_container() { # LAUNCH TOKEN NAME SECONDS: stop, keep its log, remove
    owner=$(owner_of "$3") || { [ $? -eq 1 ] && return 0 || exit 6; }
    [ "$owner" = "$2" ] || return 0
    docker stop -t "$4" "$3" >/dev/null || exit 8
    (umask 077 && docker logs "$3" >"logs/$1.log.new" 2>&1 && mv -f "logs/$1.log.new" "logs/$1.log")
    docker rm -f "$3" >/dev/null || exit 8
}
