"""Writes the one-time setup of two machines before a plan over both can start: addresses on their link, and ssh keys.

After NVIDIA's playbook "Connect two Sparks" (2026-07): a cable joins one of two pairs of ports, and that pair shows up
as `up`. The addresses are those of the plan's nodes; the second port of a pair has the address two further on.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

import yaml

from eyas.recipes.emit.words import heredoc, shell
from eyas.recipes.plan import Node, Plan

__all__ = ["PAIRS", "netplan", "render"]

PAIRS = (("enp1s0f1np1", "enP2p1s0f1np1"), ("enp1s0f0np0", "enP2p1s0f0np0"))  # the playbook's first
PREFIX = 24
TARGET = "/etc/netplan/40-eyas-link.yaml"

HEAD = """\
#!/bin/sh
# Joins two machines for the plan {name}. Once, in this order; RANK is 0 on {first} and 1 on {second}:
#   1. on both, with the cable in:   sudo sh two-nodes.sh network RANK
#   2. on both, as the same person:  sh two-nodes.sh keys RANK      (asks for the other's password once)
#   3. on both:                      sh two-nodes.sh test RANK
set -eu
fail() {{ printf 'error: %s\\n' "$*" >&2; exit 1; }}
is_up() {{ [ "$(cat "/sys/class/net/$1/operstate" 2>/dev/null)" = up ]; }}
pair_up() {{ # the two ports of the pair that is up
    for pair in {pairs}; do
        if is_up "${{pair%,*}}" && is_up "${{pair#*,}}"; then
            printf '%s\\n' "$pair"
            return
        fi
    done
    fail 'no pair of ports is up; is the cable in, and is the other machine on?'
}}
"""

BODY = """\
network() {
    [ "$(id -u)" -eq 0 ] || fail 'this step changes the network: run it with sudo'
    pair=$(pair_up)
    if [ "$pair" != "$planned" ]; then
        echo "note: $pair is up, the plan names $planned; put the interfaces that are up into the plan"
    fi
    umask 077
    settings "${pair%,*}" "${pair#*,}" >@TARGET@
    netplan apply
    ip -brief address show dev "${pair%,*}"
}
keys() {
    [ -f "$HOME/.ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -f "$HOME/.ssh/id_ed25519"
    # A machine's containers log in to themselves, too.
    grep -qxF -f "$HOME/.ssh/id_ed25519.pub" "$HOME/.ssh/authorized_keys" 2>/dev/null ||
        cat "$HOME/.ssh/id_ed25519.pub" >>"$HOME/.ssh/authorized_keys"
    chmod 600 "$HOME/.ssh/authorized_keys"
    ssh-copy-id -i "$HOME/.ssh/id_ed25519.pub" "$peer"
}
try() {
    pair=$(pair_up)
    ping -c 3 -W 2 -I "${pair%,*}" "$peer" || fail "$peer does not answer on ${pair%,*}"
    [ "$(ssh -o BatchMode=yes "$peer" id -un)" = "$(id -un)" ] || fail 'the same user name is needed on both machines'
    docker info >/dev/null 2>&1 || fail 'docker does not answer; are you in the docker group?'
    echo "$me reaches $peer"
}
case "${1:-}" in
network) network ;;
keys) keys ;;
test) try ;;
*) fail 'usage: two-nodes.sh network|keys|test 0|1' ;;
esac
"""


def render(plan: Plan) -> dict[str, str]:
    """Write `two-nodes.sh`, and the netplan file of each node to read or to copy by hand.

    It writes nothing for machines other than two Sparks, or where they have names instead of addresses: then their
    network is managed elsewhere.
    """
    nodes = plan.choice.nodes
    if len(nodes) != 2 or plan.box.hardware.name != "spark" or any(_address(node) is None for node in nodes):
        return {}
    first, second = (_plain(node.name) for node in nodes)
    pairs = " ".join(shell(",".join(pair)) for pair in dict.fromkeys((*map(_pair, nodes), *PAIRS)))
    lines = [HEAD.format(name=_plain(plan.choice.name), first=first, second=second, pairs=pairs), 'case "${2:-}" in']
    for rank, node in enumerate(nodes):
        lines += [
            f"{rank})",
            f"me={shell(node.address)} peer={shell(nodes[1 - rank].address)} planned={shell(','.join(_pair(node)))}",
            "settings() {",
            heredoc("cat", netplan(node, ("$1", "$2"))).replace("<<'EOF'", "<<EOF").removesuffix("\n"),
            "} ;;",
        ]
    lines += ["*) fail 'say which machine this is: 0 or 1' ;;", "esac", BODY.replace("@TARGET@", TARGET)]
    files = {"two-nodes.sh": "\n".join(lines)}
    return files | {f"netplan-{rank}.yaml": netplan(node, _pair(node)) for rank, node in enumerate(nodes)}


def netplan(node: Node, pair: tuple[str, str]) -> str:
    """Write settings of both ports: fixed addresses, nothing else. ValueError where the node has no IPv4 address."""
    first = IPv4Address(node.address)
    ports = {
        name: {"dhcp4": False, "addresses": [f"{first + 2 * number}/{PREFIX}"]} for number, name in enumerate(pair)
    }
    return yaml.safe_dump({"network": {"version": 2, "ethernets": ports}}, sort_keys=False)


def _pair(node: Node) -> tuple[str, str]:
    return (node.interfaces[0], node.interfaces[1]) if len(node.interfaces) == 2 else PAIRS[0]


def _address(node: Node) -> IPv4Address | None:
    try:
        address = IPv4Address(node.address)
    except AddressValueError:
        return None
    return None if address.is_loopback else address


def _plain(text: str) -> str:
    """Make text safe for a comment: nothing in it may end the line."""
    return " ".join(text.split())
