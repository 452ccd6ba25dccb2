"""What a cache keeps of a prompt behind another attribution line."""

from eyas.claude.attribution import LINE, cached_behind_line
from eyas.claude.server import connect


def test_three_requests_and_what_was_cached_of_them(server):
    with connect(server.url, server.key) as http:
        found = cached_behind_line(http, "m")
    bodies = [body["system"] for body in server.bodies]
    assert bodies[0] == bodies[1] and bodies[1][1] == bodies[2][1] and bodies[1][0] != bodies[2][0]
    start = LINE.partition("{")[0]
    assert all(system[0]["text"].startswith(start) for system in bodies)
    assert 0.9 * found.total < found.same < found.total and found.other_line == 0
