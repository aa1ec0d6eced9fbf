//! The built-in network in its own network namespace: how the kernel treats its rules and connections.

use std::{
    fs::File,
    io,
    net::UdpSocket,
    process::{Child, Command},
    time::Duration,
};

use nix::sched::{CloneFlags, setns, unshare};
use windlass_kit::pod_interface::{host_interface, limiter_interface};

use super::*;
use crate::testing::until;

mod faults;
mod policies;
mod spoofing;

/// The host's address. Clients of host ports reach it from the host itself.
const HOST: &str = "192.0.2.1";

fn run(command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs a test on a thread in a new network namespace, which the threads and programs it starts inherit.
pub(super) fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may make namespaces");
        run("ip link set lo up");
        run(&format!("ip address add {HOST}/32 dev lo"));
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
    thread.join().unwrap();
}

/// A process in its own network namespace.
struct Sandbox(Child);

impl Sandbox {
    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Also when the test fails: the reader of its output waits until every process has closed it.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// A sandbox, and a server there that answers every datagram with its name.
struct Pod {
    uid: &'static str,
    _process: Sandbox,
    addresses: Vec<IpAddr>,
}

async fn sandbox() -> Sandbox {
    let process = Sandbox(Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap());
    let path = format!("/proc/{}/ns/net", process.id());
    let host = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    while std::fs::read_link(&path).unwrap() == host {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    process
}

fn request(uid: &str, sandbox: &Sandbox, addresses: &[IpAddr], host_ports: &[HostPort]) -> Attach {
    Attach {
        pod_uid: uid.to_owned(),
        pod_name: uid.to_owned(),
        pod_namespace: "default".to_owned(),
        sandbox: uid.to_owned(),
        namespace: NetworkNamespace::of_process(sandbox.id()),
        addresses: addresses.to_vec(),
        host_ports: host_ports.to_vec(),
        bandwidth: Bandwidth::default(),
        labels: BTreeMap::new(),
        named_ports: Vec::new(),
    }
}

impl Pod {
    async fn start(network: &Network, uid: &'static str, host_ports: Vec<HostPort>) -> Self {
        let process = sandbox().await;
        let addresses = network.allocate(uid).await.unwrap();
        network.attach(request(uid, &process, &addresses, &host_ports)).await.unwrap();
        let namespace = File::open(format!("/proc/{}/ns/net", process.id())).unwrap();
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            let socket = UdpSocket::bind("0.0.0.0:5353").unwrap();
            let mut buffer = [0; 16];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(uid.as_bytes(), from);
            }
        });
        Self { uid, _process: process, addresses }
    }

    async fn stop(self, network: &Network) {
        network.detach(self.uid).await.unwrap();
    }
}

/// Sends from one and the same port until `who` answers.
async fn answered_by(client: &UdpSocket, who: &str) {
    let mut buffer = [0; 16];
    for _ in 0..200 {
        // The server may not be listening yet, which the kernel reports at the next call.
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

const PODS: &str = "10.244.9.0/24";

fn cidr(text: &str) -> Cidr {
    Cidr::parse(text).unwrap()
}

fn unstarted(dir: &std::path::Path) -> Network {
    Network::routed(NetworkConfig { dir: dir.to_owned(), cluster_cidrs: vec![cidr(PODS)] }, None)
}

async fn network(dir: &std::path::Path) -> (Network, CancellationToken) {
    let network = unstarted(dir);
    network.use_ranges(&[cidr(PODS)]).await.unwrap();
    let shutdown = CancellationToken::new();
    let (kept, token) = (network.clone(), shutdown.clone());
    tokio::spawn(async move { kept.keep(token).await });
    (network, shutdown)
}

/// kubernetes#59033, kubernetes#31983: a client that was there before the pod, and whose pod is replaced.
#[test]
fn a_steady_udp_client_reaches_the_new_holder_of_a_host_port() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let client = UdpSocket::bind((HOST, 4000)).unwrap();
        client.set_nonblocking(true).unwrap();
        client.connect((HOST, 18080)).unwrap();
        // There is no server yet; every further packet renews the conntrack entry that this one creates.
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

fn output(command: &str) -> String {
    let mut words = command.split(' ');
    let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
    String::from_utf8(done.stdout).unwrap()
}

/// All rules, by table and chain: `iptables-save` lists chains in the order in which they were made.
fn rules() -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for table in ["raw", "filter", "nat"] {
        let saved = output(&format!("iptables-save -t {table}"));
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        let mut lines: Vec<&str> = lines.map(|line| line.split(" [").next().unwrap()).collect();
        lines.sort_by_key(|line| line.strip_prefix("-A ").map(|rule| rule.split(' ').next()));
        out.extend(lines.into_iter().map(|line| format!("{table} {line}")));
    }
    out
}

/// The rules and the gateways of a fresh start in another namespace with these addresses and ranges.
fn fresh(dir: &std::path::Path, ranges: &'static [&'static str]) -> Vec<String> {
    let copy = tempfile::tempdir().unwrap();
    let from = dir.display();
    run(&format!("cp -r {from}/. {}", copy.path().display()));
    let (sender, receiver) = std::sync::mpsc::channel();
    in_own_namespace(move || async move {
        let ranges: Vec<Cidr> = ranges.iter().map(|range| cidr(range)).collect();
        unstarted(copy.path()).use_ranges(&ranges).await.unwrap();
        sender.send(world()).unwrap();
    });
    receiver.recv().unwrap()
}

/// Rules, and the host's addresses.
fn world() -> Vec<String> {
    let addresses = output("ip -o address show dev lo");
    let addresses = addresses.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned);
    rules().into_iter().chain(addresses).collect()
}

/// So many datagrams to the host, and their answers.
fn talk(sandbox: &Sandbox, datagrams: usize) {
    let namespace = File::open(format!("/proc/{}/ns/net", sandbox.id())).unwrap();
    let host = UdpSocket::bind((HOST, 0)).unwrap();
    let to = host.local_addr().unwrap();
    host.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let client = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for _ in 0..datagrams {
            socket.send_to(b"x", to).unwrap();
            socket.recv(&mut [0]).unwrap();
        }
    });
    for _ in 0..datagrams {
        let (_, from) = host.recv_from(&mut [0]).unwrap();
        host.send_to(b"y", from).unwrap();
    }
    client.join().unwrap();
}

/// firewalld's reload, nftables' restart, a typo: seconds later all rules are restored without intervention.
#[test]
fn rules_that_another_program_removed_are_restored() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let pod = Pod::start(&network, "pod", vec![udp_port()]).await;
        let wanted = fresh(dir.path(), &[PODS]);
        assert_eq!(world(), wanted);
        let to_pod = format!("to-destination {}:5353", pod.addresses[0]);
        assert!(wanted.iter().any(|rule| rule.contains(&to_pod)), "{wanted:?}");
        for foreign in [
            &["iptables -F", "iptables -t nat -F"][..],
            &["nft flush ruleset"],
            &["iptables -t nat -D PREROUTING 1", "iptables -t nat -A WINDLASS-POSTROUTING -j RETURN"],
            &[
                "iptables -I FORWARD -m comment --comment windlass-pods -j WINDLASS-FORWARD",
                "sysctl -qw net.ipv4.ip_forward=0",
            ],
        ] {
            foreign.iter().for_each(|command| run(command));
            assert_ne!(world(), wanted, "{foreign:?}");
            until(&format!("the rules after {foreign:?}"), || world() == wanted).await;
        }
        assert_eq!(output("sysctl -n net.ipv4.ip_forward"), "1\n");
        pod.stop(&network).await;
        shutdown.cancel();
    });
}

/// The namespace of a sandbox that is gone may be held by somebody, and with it the other end of the pod's interface.
#[test]
fn a_new_sandbox_is_connected_while_the_namespace_of_the_old_one_is_held() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let old = sandbox().await;
        let addresses = network.allocate("pod").await.unwrap();
        let held = request("pod", &old, &addresses, &[]);
        network.attach(held.clone()).await.unwrap();
        network.attach(held.clone()).await.unwrap();
        drop(old);
        let new = sandbox().await;
        network.attach(request("pod", &new, &addresses, &[])).await.unwrap();
        network.attach(request("pod", &new, &addresses, &[])).await.unwrap();
        talk(&new, 1);
        drop(held);
        shutdown.cancel();
    });
}

/// As large as what the machine itself may send, and slow where that is asked, whatever a pod does in its own namespace.
#[test]
fn interfaces_are_as_large_and_as_slow_as_they_may_be() {
    in_own_namespace(|| async {
        for command in [
            "ip link add out mtu 1400 type veth peer name far",
            "ip link set far up",
            "ip address add 192.0.2.2/24 dev out",
            "ip link set out up",
            "ip route add default via 192.0.2.3",
        ] {
            run(command);
        }
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let sandbox = sandbox().await;
        let addresses = network.allocate("pod").await.unwrap();
        let bandwidth = Bandwidth { ingress: Some(10_000_000), egress: Some(20_000_000) };
        let request = Attach { bandwidth, ..request("pod", &sandbox, &addresses, &[udp_port()]) };
        network.attach(request.clone()).await.unwrap();
        network.attach(request).await.unwrap();
        let inside = format!("nsenter -t {} -n", sandbox.id());
        let (host, limiter) = (host_interface("pod"), limiter_interface("pod"));
        for link in [output(&format!("ip link show {host}")), output(&format!("{inside} ip link show eth0"))] {
            assert!(link.contains("mtu 1400 "), "{link}");
        }
        let _ = Command::new("sh").args(["-c", &format!("{inside} tc qdisc del dev eth0 root")]).output();
        talk(&sandbox, 3);
        for (interface, rate) in [(&host, "10Mbit"), (&limiter, "20Mbit")] {
            let shown = output(&format!("tc -s qdisc show dev {interface}"));
            let bucket = shown.split("qdisc ").find(|one| one.starts_with("tbf")).unwrap_or_default();
            assert!(bucket.contains(rate), "{shown}");
            let packets = bucket.split(" bytes ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
            assert!(packets.is_some_and(|count| count >= 3), "{shown}");
        }
        assert_eq!(output(&format!("sysctl -n net.ipv4.conf.{host}.route_localnet")), "1\n");
        network.detach("pod").await.unwrap();
        let left = output("ip -o link");
        assert!(!left.contains(&host) && !left.contains(&limiter), "{left}");
        shutdown.cancel();
    });
}

/// A host that forwards does not listen to routers, and its default route would end: but for the interface that has it.
#[test]
fn a_default_route_that_a_router_advertises_is_kept() {
    in_own_namespace(|| async {
        for name in ["uplink", "other"] {
            run(&format!("ip link add {name} type veth peer name {name}-peer"));
            run(&format!("ip link set {name} up"));
            run(&format!("ip link set {name}-peer up"));
        }
        run("ip -6 route add default via fe80::1 dev uplink proto ra");
        run("ip -6 route add default via fe80::2 dev other metric 4096");
        let dir = tempfile::tempdir().unwrap();
        unstarted(dir.path()).use_ranges(&[cidr("fd00:10:244::/64")]).await.unwrap();
        let set = |name: &str| output(&format!("sysctl -n net.ipv6.conf.{name}.accept_ra"));
        assert_eq!((set("uplink").trim(), set("other").trim(), set("default").trim()), ("2", "1", "1"));
        assert_eq!(output("sysctl -n net.ipv6.conf.all.forwarding"), "1\n");
    });
}

/// Without the proxy, whose setting would allow it everywhere.
#[test]
fn a_host_port_is_reached_at_the_hosts_loopback_address() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        let pod = Pod::start(&network, "pod", vec![udp_port()]).await;
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_nonblocking(true).unwrap();
        client.connect("127.0.0.1:18080").unwrap();
        answered_by(&client, "pod").await;
        pod.stop(&network).await;
        shutdown.cancel();
    });
}

/// A node whose sandboxes ended with an earlier process, and that was given another range meanwhile.
#[test]
fn addresses_that_nothing_leads_to_do_not_hold_up_another_range() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (earlier, shutdown) = network(dir.path()).await;
        let ended = Pod::start(&earlier, "ended", vec![udp_port()]).await;
        let lives = Pod::start(&earlier, "lives", Vec::new()).await;
        run(&format!("ip link delete {}", host_interface("ended")));
        shutdown.cancel();

        let other = [cidr("10.244.8.0/24")];
        let network = unstarted(dir.path());
        network.read_addresses().await;
        network.use_ranges(&other).await.unwrap_err();
        network.free_unused(&other).await.unwrap();
        let error = network.use_ranges(&other).await.unwrap_err().to_string();
        assert!(error.contains(PODS), "the one that lives keeps its address: {error}");
        lives.stop(&network).await;
        network.use_ranges(&other).await.unwrap();
        assert!(!rules().iter().any(|rule| rule.contains("18080")), "its host port is closed: {:?}", rules());

        // What this process has given is being connected.
        let given = network.allocate("given").await.unwrap();
        network.free_unused(&[cidr(PODS)]).await.unwrap();
        assert_eq!(network.allocate("given").await.unwrap(), given);
        assert_eq!(network.ranges_in_use().borrow().clone(), crate::known::Known::Is(other.into()));
        ended.stop(&network).await;
    });
}

/// A netlink socket serves one dump at a time.
#[test]
fn pods_that_are_connected_at_once_do_not_refuse_each_other() {
    in_own_namespace(|| async {
        let links = std::sync::Arc::new(links::Links::open().unwrap());
        let mut sandboxes = Vec::new();
        for uid in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            sandboxes.push((uid, sandbox().await));
        }
        let connect = |(index, (uid, sandbox)): (usize, &(&'static str, Sandbox))| {
            let (links, uid, namespace) = (links.clone(), *uid, NetworkNamespace::of_process(sandbox.id()));
            let end = (format!("10.244.9.{}", index + 10).parse().unwrap(), "10.244.9.1".parse().unwrap());
            tokio::spawn(async move { links.connect(uid, &namespace, &[end], false).await })
        };
        run("ip address add 10.244.9.1/32 dev lo");
        for _ in 0..3 {
            let connected: Vec<_> = sandboxes.iter().enumerate().map(connect).collect();
            for connected in futures::future::join_all(connected).await {
                connected.unwrap().unwrap();
            }
            for (uid, _) in &sandboxes {
                links.disconnect(uid).await.unwrap();
            }
        }
    });
}
