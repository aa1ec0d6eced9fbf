//! Abusive clients, on every port: none of them blocks the others.

use std::fs;

use nix::sys::signal::Signal;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, Windlass, eventually, own_megabytes};

use crate::shell_pod;

/// Sends garbage to every port, at every layer: bytes, TLS records, HTTP, frames on upgraded connections.
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

/// Exhausts a server's connections and bodies, without credentials, with a token that has no rights, and with wrong
/// tokens: connections that never read, over HTTP/2 and HTTP/1, bodies that never end, unknown tokens.
const HUNGER: &str = r#"
import os, random, resource, socket, ssl, struct, sys, time
token = sys.argv[1].encode(); node = "198.18.0.1"; kept = []
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def tls(protocol):
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol]); return context
h2, h1 = tls("h2"), tls("http/1.1")
def connect(port, context):
    s = socket.create_connection((node if context else "127.0.0.1", port), timeout=20)
    return context.wrap_socket(s) if context else s
def attempt(do):
    try: do()
    except (OSError, ValueError): pass
def frame(kind, flags, stream, body):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
def text(value): return bytes([len(value)]) + value
# HTTP/2 with a window of nothing: the answer's body can never be sent.
def never_reads(port, path):
    def do():
        s = connect(port, h2)
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
        # GET, https, the path, the authority; the headers and the stream end here.
        block = b"\x82\x87\x04" + text(path) + b"\x01" + text(b"x")
        for stream in range(1, 40, 2): s.sendall(frame(1, 5, stream, block))
        kept.append(s)
    attempt(do)
def never_reads_h1(port, context, path):
    def do():
        s = connect(port, context)
        s.sendall((b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") * 20)
        kept.append(s)
    attempt(do)
def never_ends(port, path, length, sent):
    def do():
        s = connect(port, h1)
        s.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + token
                  + b"\r\nContent-Length: %d\r\n\r\n" % length + b"[" + b"0," * (sent // 2))
        kept.append(s)
    attempt(do)
def wrong_tokens(port, path, count):
    def do():
        with connect(port, h1) as s:
            for _ in range(count // 50):
                s.sendall(b"".join(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hungry.%d.x\r\n\r\n" % random.randrange(1 << 40) for _ in range(50)))
                got = b""
                while got.count(b"HTTP/1.1 ") < 50:
                    more = s.recv(65536)
                    if not more: return
                    got += more
    attempt(do)
print("begins", flush=True)
# More than the share of strangers; on a slow machine the first ones are gone by then, since they answer no ping.
for _ in range(600): never_reads(6443, b"/healthz")
for _ in range(200): never_reads(10250, b"/pods")
for _ in range(200): never_reads_h1(10255, None, b"/metrics/cadvisor")
for _ in range(100): never_reads_h1(6443, h1, b"/healthz")
print("connected", flush=True)
for n in range(400):
    if n % 2: never_ends(6443, b"/apis/authentication.k8s.io/v1/selfsubjectreviews", 60000, 50000)
    else: never_ends(6443, b"/api/v1/namespaces/default/configmaps", 2900000, 200000)
print("bodies", flush=True)
for _ in range(10): wrong_tokens(10250, b"/pods", 500); wrong_tokens(6443, b"/api/v1/pods", 500)
print("done", flush=True)
time.sleep(1000)
"#;

/// The log lines about rejected clients, and the address in them.
const REFUSALS: [(&str, &str); 3] = [
    ("token is invalid or has expired", "198.18.0.1"),
    ("request refused: invalid token", "198.18.0.1"),
    ("its client takes nothing of its answer", "198.18.0.1"),
];

#[test]
fn abusive_clients_do_not_block_others() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(&shell_pod("target", "Always", "echo here; sleep 3600"));
    eventually(DEFAULT_TIMEOUT, "the pod is Ready", || kubectl.ready_pods("test=target", 1));
    let pid = windlass.daemon().pid();
    let most = hunger_starves_nobody(&testbed, &mut windlass, &kubectl);
    println!("{most} MB at most");
    nonsense_harms_nobody(&testbed, &mut windlass, &kubectl, windlass_tests::seed());
    assert_eq!(windlass.daemon().pid(), pid);
    assert!(windlass.daemon().runs(), "{}", windlass.daemon().log());
    assert!(!windlass.daemon().log().contains("panicked"), "{}", windlass.daemon().log());
}

/// The process's peak memory in megabytes.
fn hunger_starves_nobody(testbed: &Testbed, windlass: &mut Windlass<'_>, kubectl: &Kubectl<'_>) -> f64 {
    let pid = windlass.daemon().pid();
    let token = kubectl.run(&["create", "token", "default"]);
    let mut client = testbed.command("python3");
    client.args(["-c", HUNGER, token.trim()]);
    let mut client = Daemon::start("a hungry client", &mut client, &testbed.dir().join("hungry.log")).expect("python3");
    let mut most: f64 = 0.0;
    let others_are_served = |most: &mut f64| {
        assert_eq!(kubectl.run(&["logs", "target"]), "here\n");
        assert_eq!(kubectl.run(&["exec", "target", "--", "echo", "alive"]), "alive\n");
        let nodes = kubectl.run(&["get", "nodes", "--no-headers"]);
        assert!(nodes.contains(" Ready "), "{nodes}");
        *most = most.max(own_megabytes(pid).expect("it runs"));
    };
    eventually(4 * DEFAULT_TIMEOUT, "all has been tried, and others are served meanwhile", || {
        others_are_served(&mut most);
        assert!(client.runs() || client.log().contains("done"), "{}", client.log());
        anyhow::ensure!(client.log().contains("done"), "{}", client.log());
        Ok(())
    });
    // The client still holds all connections open.
    eventually(2 * DEFAULT_TIMEOUT, "answers that nobody takes are given up", || {
        others_are_served(&mut most);
        let metrics = testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/metrics")?;
        for (server, reason) in [("apiserver", "stalled"), ("kubelet", "stalled")] {
            let line = format!("windlass_http_connections_dropped_total{{server=\"{server}\",reason=\"{reason}\"}} ");
            let count = metrics.lines().find_map(|l| l.strip_prefix(&line)).unwrap_or("0");
            anyhow::ensure!(count != "0", "no {reason} at {server}");
        }
        let log = windlass.daemon().log();
        for (output, by) in REFUSALS {
            let named = log.lines().filter(|l| l.contains(output)).any(|l| l.contains(by));
            anyhow::ensure!(named, "the log does not say that {by} was refused: {output}");
        }
        Ok(())
    });
    client.end(Signal::SIGKILL);
    assert!(most < 120.0, "{most} MB");
    let log = windlass.daemon().log();
    for line in REFUSALS.iter().map(|(output, _)| *output).chain(["too many connections"]) {
        let times = log.lines().filter(|l| l.contains(line)).count();
        assert!(times < 60, "{line} stands {times} times in the log");
    }
    assert!(!log.contains("hungry.") && !log.contains(token.trim()), "no token is in the log");
    most
}

/// All garbage is rejected, and leaves nothing behind.
fn nonsense_harms_nobody(testbed: &Testbed, windlass: &mut Windlass<'_>, kubectl: &Kubectl<'_>, seed: u64) {
    let pid = windlass.daemon().pid();
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count();
    let (memory, open) = (own_megabytes(pid).expect("it runs"), files());
    let mut client = testbed.command("python3");
    client.args(["-c", NONSENSE, &seed.to_string(), &testbed.dir().join("data/pki").to_string_lossy()]);
    let mut client =
        Daemon::start("a hostile client", &mut client, &testbed.dir().join("hostile.log")).expect("python3");
    eventually(4 * DEFAULT_TIMEOUT, "all has been tried, and others are served meanwhile", || {
        assert_eq!(kubectl.run(&["logs", "target"]), "here\n");
        assert!(client.runs() || client.log().contains("done"), "{}", client.log());
        anyhow::ensure!(client.log().contains("done"), "{}", client.log());
        Ok(())
    });
    assert_eq!(kubectl.run(&["exec", "target", "--", "echo", "alive"]), "alive\n");
    let grown = own_megabytes(pid).expect("it runs") - memory;
    assert!(grown < 80.0, "{grown} MB more than before");
    eventually(DEFAULT_TIMEOUT, "connections are let go", || {
        anyhow::ensure!(files() < open + 60, "{} files are open, {open} were", files());
        Ok(())
    });
}
