//! No pod sends with an address that is not its own, whatever it may do in its own namespace.

use super::*;

const PODS6: &str = "fd00:10:244:9::/64";
const HOST6: &str = "2001:db8::1";

/// Runs in a pod's namespace, where the sockets that it makes stay.
fn inside<T: Send + 'static>(sandbox: &Sandbox, work: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = File::open(format!("/proc/{}/ns/net", sandbox.id())).unwrap();
    let thread = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    });
    thread.join().unwrap()
}

fn socket_of(sandbox: &Sandbox, at: IpAddr) -> UdpSocket {
    inside(sandbox, move || UdpSocket::bind((at, 0)).unwrap())
}

/// What a socket has received up to a datagram that says so, and shortly behind it.
fn received(socket: &UdpSocket, last: &str) -> Vec<(String, IpAddr)> {
    let (mut out, mut buffer) = (Vec::new(), [0; 16]);
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if text == last {
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        }
        out.push((text, from.ip()));
    }
    out
}

#[test]
fn no_pod_sends_with_an_address_that_is_not_its_own() {
    in_own_namespace(|| async {
        run(&format!("ip address add {HOST6}/128 dev lo"));
        // What the check does not depend on, and what would make that of the sysctl loose.
        for value in ["conf.all.rp_filter=2", "conf.default.rp_filter=0"] {
            run(&format!("sysctl -qw net.ipv4.{value}"));
        }
        let dir = tempfile::tempdir().unwrap();
        let network = unstarted(dir.path());
        network.use_ranges(&[cidr(PODS), cidr(PODS6)]).await.unwrap();
        let mut pods = Vec::new();
        for (uid, host_ports) in [("attacker", vec![udp_port()]), ("friend", Vec::new()), ("target", Vec::new())] {
            let sandbox = sandbox().await;
            let addresses = network.allocate(uid).await.unwrap();
            network.attach(request(uid, &sandbox, &addresses, &host_ports)).await.unwrap();
            pods.push((sandbox, addresses));
        }
        let [(attacker, own), (_friend, of_friend), (target, of_target)] = &pods[..] else { panic!() };
        let foreign: [IpAddr; 2] = ["203.0.113.7".parse().unwrap(), "2001:db8:5::7".parse().unwrap()];
        let hosts: [IpAddr; 2] = [HOST.parse().unwrap(), HOST6.parse().unwrap()];
        for (family, own) in own.iter().enumerate() {
            let spoofed = [of_friend[family], foreign[family], hosts[family]];
            for ip in spoofed {
                let nodad = if ip.is_ipv6() { " nodad" } else { "" };
                run(&format!("nsenter -t {} -n ip address add {ip} dev lo{nodad}", attacker.id()));
            }
            let plain = socket_of(attacker, *own);
            let of_pod = socket_of(target, of_target[family]);
            // The host's own address is that of the attacker, too: where that is spoofed the answer is not looked at.
            let of_host = UdpSocket::bind((network_gateway(family), 0)).unwrap();
            for receiver in [&of_pod, &of_host] {
                let to = receiver.local_addr().unwrap();
                plain.send_to(b"first", to).unwrap();
                for ip in spoofed {
                    socket_of(attacker, ip).send_to(b"spoofed", to).unwrap();
                }
                plain.send_to(b"last", to).unwrap();
                let expected = [("first".to_owned(), *own), ("last".to_owned(), *own)];
                assert_eq!(received(receiver, "last"), expected, "at {to}");
                // And the way back.
                receiver.send_to(b"answer", plain.local_addr().unwrap()).unwrap();
                assert_eq!(received(&plain, "answer"), [("answer".to_owned(), to.ip())]);
            }
        }
        // A pod reaches itself by its host port.
        for ip in hosts {
            run(&format!("nsenter -t {} -n ip address del {ip} dev lo", attacker.id()));
        }
        let server = inside(attacker, || UdpSocket::bind("0.0.0.0:5353").unwrap());
        let client = socket_of(attacker, own[0]);
        client.send_to(b"hairpin", (HOST, 18080)).unwrap();
        let found = received(&server, "hairpin");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "hairpin");
    });
}

/// The host's address toward pods.
fn network_gateway(family: usize) -> IpAddr {
    ipam::gateway_of(&cidr([PODS, PODS6][family]))
}
