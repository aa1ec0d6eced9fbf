//! Clients that mean harm, on every port: none of them takes the node from the others.

use std::fs;

use windlass_tests::{Daemon, PATIENCE, World, eventually, resident_megabytes};

use crate::shell_pod;

/// Sends nonsense to every port, in every layer: bytes, TLS records, HTTP, frames of turned-over connections.
const NONSENSE: &str = r#"
import os, random, socket, ssl, struct, sys
random.seed(int(sys.argv[1])); pki = sys.argv[2]; node = "198.18.0.1"
trusted = ssl.create_default_context(); trusted.check_hostname = False; trusted.verify_mode = ssl.CERT_NONE
trusted.load_cert_chain(pki + "/admin.crt", pki + "/admin.key")
ports = [(node, 6443, True), (node, 10250, True), ("127.0.0.1", 10255, False), ("127.0.0.1", 10248, False),
         ("127.0.0.1", 10249, False), ("127.0.0.1", 10256, False)]
def connect(host, port, tls):
    s = socket.create_connection((host, port), timeout=5)
    return trusted.wrap_socket(s) if tls else s
def drain(s, most=1 << 16):
    s.settimeout(1)
    try:
        while most > 0:
            got = s.recv(4096)
            if not got: break
            most -= len(got)
    except OSError: pass
def attempt(do):
    try: do()
    except (OSError, ValueError): pass
def said(host, port, tls, data):
    def do():
        with connect(host, port, tls) as s:
            s.sendall(data); drain(s)
    attempt(do)
def raw(host, port):
    def do():
        with socket.create_connection((host, port), timeout=5) as s:
            s.sendall(random.randbytes(random.randrange(1, 4000))); drain(s)
    attempt(do)
for host, port, tls in ports:
    for _ in range(15):
        raw(host, port)
    for _ in range(15):
        said(host, port, tls, random.randbytes(random.randrange(1, 4000)))
    for line in [b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                 b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(5000)) + b"\r\n",
                 b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx",
                 b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\nx",
                 b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
                 b"GET /%ff%fe/../../x HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(3000)]:
        said(host, port, tls, line)
# A body of any size, to whom a body may be sent: refused before it is taken in.
def flood():
    with connect(node, 6443, True) as s:
        s.sendall(b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n")
        for _ in range(16384): s.sendall(b" " * 65536)
attempt(flood)
def deep():
    body = b'{"a":' * 100000
    said(node, 6443, True, b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
deep()
# Connections that are turned over, and then no frames that anybody knows.
websocket = (b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
             b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: %s\r\n")
spdy = b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
def frame():
    kind = random.randrange(4)
    if kind == 0: return random.randbytes(random.randrange(1, 3000))
    if kind == 1: return struct.pack(">BBQ", 0x82, 0xff, 1 << 62) + b"abcd"
    if kind == 2: return b"\x82\x80abcd" * 50
    return struct.pack(">HHI", 0x8003, random.randrange(20), random.randrange(1 << 24)) + random.randbytes(200)
for port, path in [(6443, b"/api/v1/namespaces/default/pods/target"), (10250, b"/default/target/main")]:
    for turn in range(40):
        verb = random.choice([b"exec", b"attach", b"portforward"])
        if port == 6443: where = path + b"/" + verb + b"?"
        else: where = b"/" + {b"portforward": b"portForward"}.get(verb, verb) + (b"/default/target" if verb == b"portforward" else path) + b"?"
        where += b"command=cat&stdin=true&stdout=true&input=1&output=1&port=80&ports=80"
        how = spdy if random.random() < 0.4 else websocket % random.choice([b"v5.channel.k8s.io", b"v4.channel.k8s.io", b"v4.base64.channel.k8s.io", b"SPDY/3.1+portforward.k8s.io"])
        def do():
            with connect(node, port, True) as s:
                s.sendall(b"POST " if how is spdy else b"GET "); s.sendall(where + b" HTTP/1.1\r\nHost: x\r\n" + how + b"\r\n")
                s.settimeout(5); s.recv(4096)
                for _ in range(random.randrange(1, 12)): s.sendall(frame())
                drain(s, 1 << 14)
        attempt(do)
print("done", flush=True)
"#;

#[test]
fn nonsense_harms_nobody() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").subsec_nanos();
    println!("the seed is {seed}");
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("target", "Always", "echo here; sleep 3600"));
    eventually(PATIENCE, "the pod is Ready", || kubectl.ready_pods("test=target", 1));
    let pid = windlass.daemon().pid();
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count();
    let (memory, open) = (resident_megabytes(pid).expect("it runs"), files());
    let mut client = world.command("python3");
    client.args(["-c", NONSENSE, &seed.to_string(), &world.dir().join("data/pki").to_string_lossy()]);
    let mut client = Daemon::start("a hostile client", &mut client, &world.dir().join("hostile.log")).expect("python3");
    eventually(4 * PATIENCE, "all has been tried, and others are served meanwhile", || {
        assert_eq!(kubectl.run(&["logs", "target"]), "here\n");
        assert!(client.runs() || client.log().contains("done"), "{}", client.log());
        anyhow::ensure!(client.log().contains("done"), "{}", client.log());
        Ok(())
    });
    assert_eq!(kubectl.run(&["exec", "target", "--", "echo", "alive"]), "alive\n");
    assert_eq!(windlass.daemon().pid(), pid);
    assert!(windlass.daemon().runs(), "{}", windlass.daemon().log());
    assert!(!windlass.daemon().log().contains("panicked"), "{}", windlass.daemon().log());
    let grown = resident_megabytes(pid).expect("it runs") - memory;
    assert!(grown < 80.0, "{grown} MB more than before");
    eventually(PATIENCE, "connections are let go", || {
        anyhow::ensure!(files() < open + 60, "{} files are open, {open} were", files());
        Ok(())
    });
}
