//! The built-in network in a network namespace of its own: what its kernel does with the rules and the connections.

use std::{
    fs::File,
    io,
    net::UdpSocket,
    process::{Child, Command},
    time::Duration,
};

use nix::sched::{CloneFlags, setns, unshare};

use super::*;

/// The host's address. Clients of host ports reach it from the host itself.
const HOST: &str = "192.0.2.1";

fn run(command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs a test on a thread in a network namespace of its own; the threads and programs that it starts are there too.
pub(super) fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may make namespaces");
        run("ip link set lo up");
        run(&format!("ip address add {HOST}/32 dev lo"));
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
    thread.join().unwrap();
}

/// A process in a network namespace of its own, and a server there that answers every datagram with its name.
struct Pod {
    uid: &'static str,
    process: Child,
    addresses: Vec<IpAddr>,
}

impl Pod {
    async fn start(network: &Network, uid: &'static str, host_ports: Vec<HostPort>) -> Self {
        let process = Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let path = format!("/proc/{}/ns/net", process.id());
        let host = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        while std::fs::read_link(&path).unwrap() == host {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let addresses = network.allocate(uid).await.unwrap();
        let request = Attach {
            pod_uid: uid.to_owned(),
            pod_name: uid.to_owned(),
            pod_namespace: "default".to_owned(),
            sandbox: uid.to_owned(),
            namespace: NetworkNamespace::of_process(process.id()),
            addresses: addresses.clone(),
            host_ports,
            bandwidth: Bandwidth::default(),
        };
        network.attach(request).await.unwrap();
        let namespace = File::open(path).unwrap();
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            let socket = UdpSocket::bind("0.0.0.0:5353").unwrap();
            let mut buffer = [0; 16];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(uid.as_bytes(), from);
            }
        });
        Self { uid, process, addresses }
    }

    async fn stop(mut self, network: &Network) {
        network.detach(self.uid).await.unwrap();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Sends from one and the same port until `who` answers.
async fn answered_by(client: &UdpSocket, who: &str) {
    let mut buffer = [0; 16];
    for _ in 0..200 {
        // Nobody may listen yet, which the kernel reports at the next call.
        let _ = client.send(b"who");
        tokio::time::sleep(Duration::from_millis(50)).await;
        match client.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == who.as_bytes() => return,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("{who} does not answer");
}

fn udp_port() -> HostPort {
    HostPort { host_ip: None, host_port: 18080, container_port: 5353, protocol: Protocol::Udp }
}

async fn network(dir: &std::path::Path) -> (Network, CancellationToken) {
    let pods = Cidr::parse("10.244.9.0/24").unwrap();
    let network = Network::routed(NetworkConfig { dir: dir.to_owned(), cluster_cidrs: vec![pods] });
    network.use_ranges(&[pods]).await.unwrap();
    let shutdown = CancellationToken::new();
    let (kept, token) = (network.clone(), shutdown.clone());
    tokio::spawn(async move { kept.keep(token).await });
    (network, shutdown)
}

/// kubernetes#59033, kubernetes#31983: a client that was there before the pod, and whose pod is replaced.
#[test]
fn a_udp_client_with_a_steady_port_reaches_the_pod_that_has_the_host_port_now() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let client = UdpSocket::bind((HOST, 4000)).unwrap();
        client.set_nonblocking(true).unwrap();
        client.connect((HOST, 18080)).unwrap();
        // Nobody serves yet; the entry that this makes is renewed by every further packet.
        client.send(b"who").unwrap();
        let first = Pod::start(&network, "first", vec![udp_port()]).await;
        answered_by(&client, "first").await;
        first.stop(&network).await;
        let _ = client.send(b"who");
        let second = Pod::start(&network, "second", vec![udp_port()]).await;
        answered_by(&client, "second").await;
        second.stop(&network).await;
        shutdown.cancel();
    });
}

#[test]
fn rules_that_another_program_removed_are_restored() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let pod = Pod::start(&network, "pod", vec![udp_port()]).await;
        let Backend::Routed(routed) = &*network.backend else { panic!("it is the built-in one") };
        let rules = || {
            let saved = Command::new("iptables-save").output().unwrap();
            let text = String::from_utf8(saved.stdout).unwrap();
            text.lines().filter(|line| line.contains("WINDLASS")).map(str::to_owned).collect::<Vec<_>>()
        };
        let wanted = rules();
        assert!(
            wanted.iter().any(|rule| rule.contains(&format!("to-destination {}:5353", pod.addresses[0]))),
            "{wanted:?}"
        );
        for foreign in [
            "iptables -t nat -F WINDLASS-HOSTPORTS",
            "iptables -t nat -D PREROUTING 1",
            "iptables -t nat -A WINDLASS-POSTROUTING -j RETURN",
            "iptables -F",
        ] {
            run(foreign);
            assert_ne!(rules(), wanted, "{foreign}");
            routed.repair().await;
            assert_eq!(rules(), wanted, "after {foreign}");
        }
        pod.stop(&network).await;
        shutdown.cancel();
    });
}
