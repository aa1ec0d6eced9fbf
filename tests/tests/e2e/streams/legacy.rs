//! The older WebSocket protocols, which kubectl no longer uses, with a client of our own.

use std::{fs, path::PathBuf};

use base64::Engine as _;
use serde_json::Value;
use windlass_tests::{Kubectl, Testbed};

use super::{running, sleeper};

/// Sends messages, given in hexadecimal, and prints what comes until the server closes. A message begins with its kind:
/// 1 for text, 2 for binary, 8 for close; `wait` waits for a message first.
const CLIENT: &str = r#"
import base64, os, socket, ssl, struct, sys
host, port, dir, path, protocol = sys.argv[1:6]
context = ssl.create_default_context(cafile=dir + "/ca")
context.check_hostname = False
context.load_cert_chain(dir + "/cert", dir + "/key")
s = context.wrap_socket(socket.create_connection((host, int(port)), 60))
head = "GET %s HTTP/1.1\r\nHost: api\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" % path
if protocol:
    head += "Sec-WebSocket-Protocol: %s\r\n" % protocol
s.sendall((head + "\r\n").encode())
f = s.makefile("rb")
print(f.readline().decode().strip())
while True:
    line = f.readline().strip()
    if not line:
        break
    if line.lower().startswith(b"sec-websocket-protocol"):
        print(line.decode().lower())
def read():
    a, b = f.read(2)
    n = b & 127
    if n == 126: n = struct.unpack(">H", f.read(2))[0]
    elif n == 127: n = struct.unpack(">Q", f.read(8))[0]
    return a & 15, f.read(n)
def show(kind, payload):
    if kind in (1, 2): print(kind, payload.hex())
    elif kind == 8:
        print("close", struct.unpack(">H", payload[:2])[0] if payload else 0)
        sys.exit()
for message in sys.argv[6:]:
    if message == "wait":
        show(*read())
        continue
    kind, payload = int(message[0]), bytes.fromhex(message[1:])
    mask = os.urandom(4)
    n = len(payload)
    size = bytes([128 | n]) if n < 126 else bytes([254]) + struct.pack(">H", n)
    s.sendall(bytes([128 | kind]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))
try:
    while True:
        show(*read())
except (OSError, ValueError):
    print("broken")
"#;

struct Client<'w> {
    testbed: &'w Testbed,
    dir: PathBuf,
    host: String,
    port: String,
}

impl<'w> Client<'w> {
    fn new(testbed: &'w Testbed, kubectl: &Kubectl<'_>) -> Self {
        let config: Value =
            serde_json::from_str(&kubectl.run(&["config", "view", "--raw", "-o", "json"])).expect("it is JSON");
        let dir = testbed.dir().join("client");
        fs::create_dir_all(&dir).expect("a directory can be created");
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        for (name, text) in [
            ("ca", &cluster["certificate-authority-data"]),
            ("cert", &user["client-certificate-data"]),
            ("key", &user["client-key-data"]),
        ] {
            let text = base64::engine::general_purpose::STANDARD.decode(text.as_str().expect("it is there"));
            fs::write(dir.join(name), text.expect("it is base64")).expect("a file can be written");
        }
        let server = cluster["server"].as_str().expect("it is there").trim_start_matches("https://").to_owned();
        let (host, port) = server.rsplit_once(':').expect("it has a port");
        Self { testbed, dir, host: host.to_owned(), port: port.to_owned() }
    }

    /// The received messages, line by line.
    fn talk(&self, path: &str, protocol: &str, messages: &[&str]) -> Vec<String> {
        let path = format!("/api/v1/namespaces/default/pods/{path}");
        let output = self
            .testbed
            .command("timeout")
            .args(["100", "python3", "-c", CLIENT, &self.host, &self.port])
            .arg(&self.dir)
            .args([&path, protocol])
            .args(messages)
            .output()
            .expect("python3 starts");
        let result = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{path} {protocol}: {result}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal")).collect()
}

/// The bytes of one channel, and the kind of its messages.
fn channel(lines: &[String], channel: u8, base64: bool) -> Vec<u8> {
    let kind = if base64 { "1 " } else { "2 " };
    let messages = lines.iter().filter_map(|l| l.strip_prefix(kind)).map(unhex);
    let of_it = messages.filter(|m| m.first() == Some(&if base64 { b'0' + channel } else { channel }));
    of_it
        .flat_map(|m| {
            if base64 {
                base64::engine::general_purpose::STANDARD.decode(&m[1..]).expect("base64")
            } else {
                m[1..].to_vec()
            }
        })
        .collect()
}

#[test]
fn older_protocols() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    sleeper(&kubectl, "box");
    let client = Client::new(&testbed, &kubectl);
    let query = "stdout=1&stderr=1&stdin=1&command=sh&command=-c&command=read+x;echo+got-$x;echo+err+>%262;exit+3";
    let query = query.replace('>', "%3E").replace(';', "%3B").replace('$', "%24");
    for protocol in [
        "",
        "channel.k8s.io",
        "base64.channel.k8s.io",
        "v4.channel.k8s.io",
        "v4.base64.channel.k8s.io",
        "v5.channel.k8s.io",
    ] {
        let base64 = protocol.contains("base64");
        let typed = if base64 { format!("1{}", hex(b"0eAo=")) } else { format!("2{}", hex(b"\0x\n")) };
        let lines = client.talk(&format!("box/exec?{query}"), protocol, &["wait", &typed]);
        assert_eq!(lines[0], "HTTP/1.1 101 Switching Protocols", "{protocol}: {lines:?}");
        if !protocol.is_empty() {
            assert_eq!(lines[1], format!("sec-websocket-protocol: {protocol}"));
        }
        // The first message is empty, on standard output.
        let first = lines.iter().find(|l| l.starts_with("1 ") || l.starts_with("2 ")).expect("a message");
        assert_eq!(first, if base64 { "1 31" } else { "2 01" }, "{protocol}: {lines:?}");
        assert_eq!(channel(&lines, 1, base64), b"got-x\n", "{protocol}: {lines:?}");
        assert_eq!(channel(&lines, 2, base64), b"err\n", "{protocol}: {lines:?}");
        let printed = String::from_utf8(channel(&lines, 3, base64)).expect("text");
        if protocol.starts_with('v') {
            let status: Value = serde_json::from_str(&printed).expect("a Status");
            assert_eq!(status["details"]["causes"][0]["message"], "3", "{protocol}");
        } else {
            assert!(printed.contains("exit status 3"), "{protocol}: {printed}");
        }
        assert_eq!(lines.last().map(String::as_str), Some("close 1000"), "{protocol}: {lines:?}");
    }
    // Text where binary was agreed, half a close frame, and an invalid frame.
    let cat = "box/exec?stdout=1&stdin=1&command=cat";
    let lines = client.talk(cat, "v5.channel.k8s.io", &[&format!("1{}", hex(b"\0hi")), "2ff00"]);
    assert_eq!(channel(&lines, 1, false), b"hi", "{lines:?}");
    for wrong in [&["2"][..], &["37f7f"]] {
        let lines = client.talk(cat, "channel.k8s.io", wrong);
        assert!(matches!(lines.last().map(String::as_str), Some("broken" | "close 1002")), "{wrong:?}: {lines:?}");
    }
    assert_eq!(client.talk(cat, "v9.channel.k8s.io", &[])[0], "HTTP/1.1 400 Bad Request");
    assert_eq!(client.talk("box/exec?stdin=0&command=cat", "v4.channel.k8s.io", &[])[0], "HTTP/1.1 400 Bad Request");
    forwards(&kubectl, &client);
    windlass.down(&[]);
}

/// Ports, a pair of channels each.
fn forwards(kubectl: &Kubectl<'_>, client: &Client<'_>) {
    running(kubectl, "echo", &crate::shell_pod("echo", "Never", "nc -ll -p 81 -e head -n 1 & exec sleep 100000"));
    for protocol in ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"] {
        let base64 = protocol.contains("base64");
        let typed = if base64 { format!("1{}", hex(b"0aGkK")) } else { format!("2{}", hex(b"\0hi\n")) };
        let lines = client.talk("echo/portforward?ports=81&ports=9", protocol, &[&typed]);
        assert_eq!(channel(&lines, 0, base64), [&81_u16.to_le_bytes()[..], b"hi\n"].concat(), "{protocol}: {lines:?}");
        assert_eq!(channel(&lines, 1, base64), 81_u16.to_le_bytes(), "{protocol}: {lines:?}");
        assert_eq!(channel(&lines, 2, base64), 9_u16.to_le_bytes(), "{protocol}: {lines:?}");
        let printed = channel(&lines, 3, base64);
        assert_eq!(printed[..2], 9_u16.to_le_bytes(), "{protocol}: {lines:?}");
        let why = String::from_utf8_lossy(&printed[2..]).into_owned();
        assert!(why.contains("failed to connect to localhost:9"), "{protocol}: {why}");
    }
    assert_eq!(client.talk("echo/portforward", "v4.channel.k8s.io", &[])[0], "HTTP/1.1 400 Bad Request");
}
