//! port-forward.

use std::io::{BufRead as _, BufReader};

use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

use super::{SPOKEN, running, started};

/// Serves a large file on port 80, and echoes on port 81.
const SERVER: &str = "mkdir /tmp/www; dd if=/dev/urandom of=/tmp/www/large bs=1M count=20 2>/dev/null; \
     md5sum </tmp/www/large >/tmp/www/sum; httpd -p 127.0.0.1:80 -h /tmp/www; \
     nc -ll -p 81 -e cat & touch /tmp/ready; exec sleep 100000";

/// kubectl port-forward with its local ports; killed when dropped.
struct Forward {
    child: std::process::Child,
    ports: Vec<u16>,
}

impl Forward {
    fn new(kubectl: &Kubectl<'_>, websockets: &str, target: &str, ports: &[u16]) -> Self {
        let ports: Vec<String> = ports.iter().map(|port| format!(":{port}")).collect();
        let args: Vec<&str> = ["port-forward", "--address=127.0.0.1", target]
            .into_iter()
            .chain(ports.iter().map(String::as_str))
            .collect();
        let mut child = started(kubectl, websockets, &args);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let local = ports.iter().map(|_| {
            let line = lines.next().expect("it says where").expect("it can be read");
            let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|l| l.split(' ').next());
            port.and_then(|p| p.parse().ok()).unwrap_or_else(|| panic!("no port in {line:?}"))
        });
        let ports = local.collect();
        // Its output must be read, so that it does not block.
        std::thread::spawn(move || for _ in lines.by_ref() {});
        Self { child, ports }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn port_forward() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    running(&kubectl, "server", &crate::shell_pod("server", "Never", SERVER));
    eventually(DEFAULT_TIMEOUT, "the pod serves", || kubectl.try_run(&["exec", "server", "--", "cat", "/tmp/ready"]));
    let sum = kubectl.run(&["exec", "server", "--", "cat", "/tmp/www/sum"]);
    for websockets in SPOKEN {
        let forward = Forward::new(&kubectl, websockets, "pod/server", &[80, 81, 9]);
        let [web, echo, closed] = forward.ports[..] else { panic!("{:?}", forward.ports) };
        // several at once, each complete
        let fetch = format!("curl -sS --max-time 120 http://127.0.0.1:{web}/large | md5sum");
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| testbed.sh(&fetch))).collect();
            for got in all {
                assert_eq!(got.join().expect("it was fetched"), sum, "{websockets}");
            }
        });
        // a hundred short ones
        let many = format!("for i in $(seq 100); do curl -sS --max-time 60 http://127.0.0.1:{web}/sum || exit 1; done");
        assert_eq!(testbed.sh(&many).lines().count(), 100);
        // half-closed connections: the response comes after the client's end
        let half = format!(
            "python3 -c 'import socket; s = socket.create_connection((\"127.0.0.1\", {echo})); s.settimeout(60)\n\
             s.sendall(b\"x\" * 300000); s.shutdown(socket.SHUT_WR)\nn = 0\n\
             while True:\n    b = s.recv(65536)\n    n += len(b)\n    if not b: break\nprint(n)'"
        );
        assert_eq!(testbed.sh(&half).trim(), "300000", "{websockets}");
        // a closed port is reported, by kubectl too
        let refused = format!("curl -sS --max-time 60 http://127.0.0.1:{closed}/");
        assert!(testbed.try_sh(&refused).is_err());
        let mut forward = forward;
        let mut output = String::new();
        let mut err = forward.child.stderr.take().expect("piped");
        // kubectl itself closes the whole connection then.
        std::io::Read::read_to_string(&mut err, &mut output).expect("it ends");
        assert!(output.contains("failed to connect to localhost:9 inside"), "{websockets}: {output}");
    }
    // Forwarding ends with the pod: its address may be reused.
    let mut last = Forward::new(&kubectl, "true", "pod/server", &[80]);
    assert!(testbed.try_sh(&format!("curl -sS --max-time 60 http://127.0.0.1:{}/sum", last.ports[0])).is_ok());
    let _ = kubectl.run(&["delete", "pod", "server", "--now"]);
    eventually(DEFAULT_TIMEOUT, "the session ends with the sandbox", || {
        last.child.try_wait()?.ok_or_else(|| anyhow::anyhow!("kubectl port-forward still runs"))
    });
    windlass.down(&[]);
}
