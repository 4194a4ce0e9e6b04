"""Limits, the proxy, services and a sprite's own address, with real namespaces (providers 1.1, 1.2, 1.10)."""

import json

import httpx
from plain_http import create, run
from server import DEADLINE, TOKENS, until

# Answers every request with its own head; perl is what a bare system has.
PAGE = (
    "use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => PORT, Listen => 9, ReuseAddr => 1) or die; "
    "print \"ready\\n\"; $| = 1; while (my $c = $l->accept) { my $h = ''; while (<$c>) { last if /^\\r?$/; $h .= $_ } "
    "my $b = \"PORT \" . (split / /, $h)[1]; print $c \"HTTP/1.1 200 OK\\r\\nContent-Length: \" . length($b) . \"\\r\\n\\r\\n$b\"; close $c }"
)


def page(port):
    return ["perl", "-e", PAGE.replace("PORT", str(port))]


def limits_say_which_and_when(server):
    create(server, "one")
    create(server, "two")
    answer = server.call("POST", "/v1/sprites", json={"name": "three"})
    body = answer.json()
    assert (answer.status_code, body["error"], body["limit"], body["current_count"]) == (429, "concurrent_sprite_limit_exceeded", 2, 2), body
    # Another token has limits of its own.
    create(server, "one", TOKENS[1])
    assert server.call("DELETE", "/v1/sprites/two").status_code == 204
    create(server, "four")
    assert server.call("DELETE", "/v1/sprites/four").status_code == 204
    answer = server.call("POST", "/v1/sprites", json={"name": "five"})
    body = answer.json()
    assert (answer.status_code, body["error"], body["limit"], body["window_seconds"]) == (429, "sprite_creation_rate_limited", 3, 60), body
    assert 1 <= body["retry_after_seconds"] <= 60 and answer.headers["retry-after"] == str(body["retry_after_seconds"]), answer.headers
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == ("3", "0")


limits_say_which_and_when.arguments = ["--max-sprites", "2", "--max-creations-a-minute", "3"]


def the_proxy_reaches_the_loopback_inside(server):
    create(server, "web")
    listening, _ = server.exec("web", *page(9000), detachable="true")
    assert listening.recv(timeout=DEADLINE) == b"\x01ready\n"

    def proxy(target):
        wire = server._open("/v1/sprites/web/proxy", TOKENS[0])
        wire.send(json.dumps(target))
        return wire, json.loads(wire.recv(timeout=DEADLINE))

    wire, told = proxy({"host": "localhost", "port": 9000})
    assert told == {"status": "connected", "target": "localhost:9000"}, told
    wire.send(b"GET /through HTTP/1.1\r\n\r\n")
    said = b""
    while b"9000 /through" not in said:
        said += wire.recv(timeout=DEADLINE)
    for target in ({"host": "10.0.0.1", "port": 9000}, {"host": "localhost", "port": 9001}, {"host": "localhost", "port": 0}, {}):
        assert proxy(target)[1]["status"] == "error", target


def services_run_and_answer_at_the_address(server):
    made = create(server, "site")
    definition = {"cmd": page(3000)[0], "args": page(3000)[1:], "http_port": 3000}
    answer = server.call("PUT", "/v1/sprites/site/services/web", json=definition)
    assert answer.status_code in (200, 201), (answer.status_code, answer.text)
    second = server.call("PUT", "/v1/sprites/site/services/other", json={"cmd": "sleep", "args": ["600"], "http_port": 3001})
    assert second.status_code == 409, (second.status_code, second.text)
    state = lambda: server.call("GET", "/v1/sprites/site/services/web").json()["state"]["status"]  # noqa: E731
    until("the service runs", lambda: state() == "running")
    url = made["url"] if made["url"].startswith("http") else server.url + made["url"]
    url = url.replace(url.split("/sprites/")[0], server.url)
    mine = {"Authorization": f"Bearer {TOKENS[0]}"}
    until("it answers", lambda: httpx.get(url + "path?q", headers=mine, timeout=DEADLINE).text == "3000 /path?q")
    assert httpx.get(url, timeout=DEADLINE).status_code == 401
    assert httpx.get(url, headers={"Authorization": f"Bearer {TOKENS[1]}"}, timeout=DEADLINE).status_code == 401
    assert server.call("PUT", "/v1/sprites/site", json={"url_settings": {"auth": "public"}}).status_code == 200
    assert httpx.get(url + "open", timeout=DEADLINE).text == "3000 /open"
    server.kill()
    server.start()
    url = server.url + "/sprites/" + url.split("/sprites/")[1]
    until("it is started again", lambda: httpx.get(url + "again", timeout=DEADLINE).text == "3000 /again")
    assert run(server, "site", "echo beside it").out == b"beside it\n"
    assert server.call("DELETE", "/v1/sprites/site").status_code == 204
    assert httpx.get(url, timeout=DEADLINE).status_code == 404


CASES = [
    limits_say_which_and_when,
    the_proxy_reaches_the_loopback_inside,
    services_run_and_answer_at_the_address,
]
