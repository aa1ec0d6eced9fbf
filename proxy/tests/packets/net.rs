//! A node, its pods, a client pod, another node with its pods, clients outside, and the rest of the world, as network
//! namespaces with addresses of both families.

use std::{
    collections::BTreeSet,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
};

use windlass_proxy::model::Family;

use crate::{
    client::Client,
    netns::{enter, run},
    sctp,
    tables::{Cluster, NODE, twin},
};

static NEXT: AtomicUsize = AtomicUsize::new(0);

pub(crate) const ENDPOINTS: u8 = 7;
/// What endpoints listen at.
const TCP: [u16; 3] = [80, 8443, 5353];
const UDP: u16 = 53;
/// Ports of the node itself: a node port, a health check port, one without rules, and two next to or behind the port
/// of a balancer with the node's address.
const ON_NODE: [u16; 5] = [3001, HEALTH, INNER, 22, 80];
const UDP_ON_NODE: u16 = 80;
pub(crate) const HEALTH: u16 = 30000;
pub(crate) const INNER: u16 = 4000;
/// The receiver of packets for service addresses that no rule translated.
const WORLD_TCP: [u16; 2] = [80, 443];
const WORLD_UDP: u16 = 80;

pub(crate) struct Net {
    tag: String,
}

/// Addresses of services; some packets to them must not match any rule.
const SERVICES: [&str; 3] = ["172.30.0.41", "172.30.0.42", "172.30.0.43"];

/// The last octets of the endpoints that are on another node.
pub(crate) fn remote(cluster: &Cluster) -> BTreeSet<u8> {
    let endpoints = cluster.slices.iter().flat_map(|s| s["endpoints"].as_array().unwrap());
    let remote = endpoints.filter(|e| e["nodeName"] == "other").map(|e| e["addresses"][0].as_str().unwrap());
    remote.filter_map(|ip| ip.strip_prefix("10.180.0.")?.parse().ok()).collect()
}

/// Sources outside the cluster.
const OUTSIDE: [&str; 2] = ["203.0.113.2", "203.0.113.130"];

fn nodad(family: Family) -> &'static str {
    if family == Family::V6 { " nodad" } else { "" }
}

impl Net {
    pub(crate) fn node(&self) -> String {
        format!("{}-n", self.tag)
    }

    /// Another node; its pods have the same addresses as the node's, and the routes of the node select one.
    fn other(&self) -> String {
        format!("{}-o", self.tag)
    }

    fn pod(&self, octet: u8, remote: bool) -> String {
        format!("{}-{}{octet}", self.tag, if remote { "r" } else { "" })
    }

    fn client_pod(&self) -> String {
        format!("{}-c", self.tag)
    }

    fn outside(&self) -> String {
        format!("{}-x", self.tag)
    }

    /// The next hop of the node's default route.
    fn world(&self) -> String {
        format!("{}-w", self.tag)
    }

    fn names(&self) -> Vec<String> {
        let pods = (1..=ENDPOINTS).flat_map(|i| [self.pod(i, false), self.pod(i, true)]);
        pods.chain([self.node(), self.other(), self.client_pod(), self.outside(), self.world()]).collect()
    }

    pub(crate) fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests make network namespaces: run them as root");
        let net = Self { tag: format!("wlm{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)) };
        for name in net.names() {
            run(&format!("ip netns add {name}"));
            run(&format!("ip -n {name} link set lo up"));
            // Addresses are usable at once, link-local ones too.
            run(&format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
        }
        for host in [net.node(), net.other()] {
            let settings =
                ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.route_localnet=1"];
            settings.iter().for_each(|s| _ = run(&format!("ip netns exec {host} sysctl -qw {s}")));
        }
        for octet in 1..=ENDPOINTS {
            let ip = format!("10.180.0.{octet}");
            attach(&net.node(), &net.pod(octet, false), &format!("p{octet}"), &ip);
            attach(&net.other(), &net.pod(octet, true), &format!("p{octet}"), &ip);
        }
        attach(&net.node(), &net.client_pod(), "pc", "10.0.0.2");
        net.connect_other();
        net.connect_outside();
        net.connect_world();
        net.serve();
        net
    }

    /// A link from the node, with an address for each end in both families.
    fn link(&self, name: &str, link: &str, subnet: [&str; 2]) {
        let node = self.node();
        run(&format!("ip -n {node} link add {link} type veth peer name eth0 netns {name}"));
        for (host, link, end) in [(node.as_str(), link, 1), (name, "eth0", 2)] {
            run(&format!("ip -n {host} addr add {}{end}/24 dev {link}", subnet[0]));
            run(&format!("ip -n {host} addr add {}{end}/64 dev {link} nodad", subnet[1]));
            run(&format!("ip -n {host} link set {link} up"));
        }
        run(&format!("ip -n {name} route add default via {}1", subnet[0]));
        run(&format!("ip -n {name} -6 route add default via {}1", subnet[1]));
    }

    fn connect_other(&self) {
        self.link(&self.other(), "other", ["192.0.2.", "fd00:99::"]);
    }

    /// Puts each endpoint where its cluster has it: on this node or on the other.
    pub(crate) fn place_endpoints(&self, remote: &BTreeSet<u8>) {
        let node = self.node();
        for octet in 1..=ENDPOINTS {
            let ip = format!("10.180.0.{octet}");
            let via = |four: bool| match (remote.contains(&octet), four) {
                (true, true) => "via 192.0.2.2 dev other".to_owned(),
                (true, false) => "via fd00:99::2 dev other".to_owned(),
                (false, _) => format!("dev p{octet}"),
            };
            run(&format!("ip -n {node} route replace {ip}/32 {}", via(true)));
            // IPv6 keeps the old route next to a new one of another kind.
            run(&format!("ip -n {node} -6 route flush {}/128", twin(&ip, Family::V6)));
            run(&format!("ip -n {node} -6 route add {}/128 {}", twin(&ip, Family::V6), via(false)));
        }
    }

    fn connect_outside(&self) {
        let (node, outside) = (self.node(), self.outside());
        self.link(&outside, "ext", ["198.51.100.", "2001:db8:ffff::"]);
        for (ip, family) in OUTSIDE.iter().flat_map(|ip| Family::BOTH.map(|family| (ip, family))) {
            let ip = format!("{}/{}", twin(ip, family), family.bits());
            let via = if family == Family::V4 { "via 198.51.100.2" } else { "via 2001:db8:ffff::2" };
            run(&format!("ip -n {outside} addr add {ip} dev eth0{}", nodad(family)));
            run(&format!("ip -n {node} route add {ip} {via}"));
        }
        for (ip, family) in NODE.iter().flat_map(|ip| Family::BOTH.map(|family| (ip, family))) {
            run(&format!("ip -n {node} addr add {}/{} dev lo{}", twin(ip, family), family.bits(), nodad(family)));
        }
        // A neighbour that sends to the loopback addresses of the node.
        run(&format!("ip netns exec {outside} sysctl -qw net.ipv4.conf.all.route_localnet=1"));
        run(&format!("ip -n {outside} route add 127.0.0.5/32 via 198.51.100.1 table local"));
    }

    /// Receives packets to services that are not translated.
    fn connect_world(&self) {
        let (node, world) = (self.node(), self.world());
        self.link(&world, "wan", ["198.18.0.", "2001:db8:fffe::"]);
        for (ip, family) in SERVICES.iter().flat_map(|ip| Family::BOTH.map(|family| (ip, family))) {
            run(&format!("ip -n {world} addr add {}/{} dev lo{}", twin(ip, family), family.bits(), nodad(family)));
        }
        run(&format!("ip -n {node} route add default via 198.18.0.2"));
        run(&format!("ip -n {node} -6 route add default via 2001:db8:fffe::2"));
        // Packets that the node forwards nowhere must not return to it.
        for program in ["iptables-nft", "ip6tables-nft"] {
            run(&format!("ip netns exec {world} {program} -A FORWARD -j DROP"));
        }
    }

    /// Starts all servers.
    fn serve(&self) {
        let (ready, wait) = channel();
        let mut count = 0;
        let mut udp = |name: &str, ip: IpAddr, port: u16| {
            serve_udp(name.to_owned(), SocketAddr::new(ip, port), ready.clone());
            count += 1;
        };
        for family in Family::BOTH {
            for (octet, remote) in (1..=ENDPOINTS).flat_map(|o| [(o, false), (o, true)]) {
                let ip = twin(&format!("10.180.0.{octet}"), family).parse().unwrap();
                udp(&self.pod(octet, remote), ip, UDP);
            }
            SERVICES.iter().for_each(|ip| udp(&self.world(), twin(ip, family).parse().unwrap(), WORLD_UDP));
            udp(&self.node(), twin(NODE[0], family).parse().unwrap(), UDP_ON_NODE);
        }
        for family in Family::BOTH {
            for (octet, remote) in (1..=ENDPOINTS).flat_map(|o| [(o, false), (o, true)]) {
                let ip: IpAddr = twin(&format!("10.180.0.{octet}"), family).parse().unwrap();
                let (name, ready) = (self.pod(octet, remote), ready.clone());
                std::thread::spawn(move || {
                    enter(&name);
                    sctp::serve(ip, || ready.send(()).unwrap());
                });
                count += 1;
            }
        }
        let mut tcp = |name: String, ports: &[u16]| {
            for port in ports {
                serve_tcp(name.clone(), *port, ready.clone());
                count += 1;
            }
        };
        (1..=ENDPOINTS).for_each(|o| [false, true].iter().for_each(|remote| tcp(self.pod(o, *remote), &TCP)));
        tcp(self.node(), &ON_NODE);
        tcp(self.world(), &WORLD_TCP);
        for _ in 0..count {
            wait.recv().unwrap();
        }
    }

    /// Feeds a text to a restore program in the node's namespace.
    pub(crate) fn restore(&self, program: &str, args: &[&str], text: &str) {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.node(), program])
            .args(args)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program}: {}\n{text}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs `work` while the node has this address: that of a load balancer, which some proxies assign to the node.
    pub(crate) fn with_address<T>(&self, ip: IpAddr, work: impl FnOnce() -> T) -> T {
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let node = self.node();
        run(&format!("ip -n {node} addr add {ip}/{} dev lo{}", family.bits(), nodad(family)));
        let out = work();
        run(&format!("ip -n {node} addr del {ip}/{} dev lo", family.bits()));
        out
    }

    /// The namespace that has an address.
    fn place(&self, source: IpAddr, remote: &BTreeSet<u8>) -> Option<String> {
        let is = |ip: &str| Family::BOTH.iter().any(|f| twin(ip, *f).parse() == Ok(source));
        if source.is_loopback() || NODE.iter().any(|ip| is(ip)) {
            return Some(self.node());
        }
        if is("10.0.0.2") {
            return Some(self.client_pod());
        }
        if OUTSIDE.iter().any(|ip| is(ip)) {
            return Some(self.outside());
        }
        let octet = (1..=ENDPOINTS).find(|octet| is(&format!("10.180.0.{octet}")))?;
        Some(self.pod(octet, remote.contains(&octet)))
    }

    /// The namespace that sends from an address; no namespace has that of a load balancer.
    pub(crate) fn client(&self, source: IpAddr, remote: &BTreeSet<u8>) -> Option<Client> {
        self.place(source, remote).map(Client::new)
    }

    pub(crate) fn client_of_node(&self) -> Client {
        Client::new(self.node())
    }

    pub(crate) fn client_outside(&self) -> Client {
        Client::new(self.outside())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.names() {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// A routed pod: the host side of its link has its own addresses, so that a masqueraded source differs from the node's
/// other addresses.
fn attach(host: &str, pod: &str, link: &str, ip: &str) {
    let six = twin(ip, Family::V6);
    run(&format!("ip -n {host} link add {link} type veth peer name eth0 netns {pod}"));
    run(&format!("ip -n {host} addr add 169.254.1.1/32 dev {link}"));
    run(&format!("ip -n {host} addr add fd00:fe::1/128 dev {link} nodad"));
    run(&format!("ip -n {host} link set {link} up"));
    run(&format!("ip -n {host} route add {ip}/32 dev {link}"));
    run(&format!("ip -n {host} -6 route add {six}/128 dev {link}"));
    run(&format!("ip -n {pod} addr add {ip}/32 dev eth0"));
    run(&format!("ip -n {pod} addr add {six}/128 dev eth0 nodad"));
    run(&format!("ip -n {pod} link set eth0 up"));
    run(&format!("ip -n {pod} route add 169.254.1.1 dev eth0"));
    run(&format!("ip -n {pod} route add default via 169.254.1.1"));
    run(&format!("ip -n {pod} -6 route add fd00:fe::1 dev eth0"));
    run(&format!("ip -n {pod} -6 route add default via fd00:fe::1"));
}

/// Answers with its own address and port, and the source that it saw.
fn serve_tcp(namespace: String, port: u16, ready: Sender<()>) {
    std::thread::spawn(move || {
        enter(&namespace);
        let listener = TcpListener::bind(("::", port)).expect("the port is free in a new namespace");
        ready.send(()).unwrap();
        for mut stream in listener.incoming().flatten() {
            let (Ok(me), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { continue };
            let me = SocketAddr::new(me.ip().to_canonical(), me.port());
            let _ = stream.write_all(format!("{me} {}", peer.ip().to_canonical()).as_bytes());
        }
    });
}

/// The same for datagrams at one address.
fn serve_udp(namespace: String, at: SocketAddr, ready: Sender<()>) {
    std::thread::spawn(move || {
        enter(&namespace);
        let socket = UdpSocket::bind(at).expect("the port is free in a new namespace");
        ready.send(()).unwrap();
        let mut byte = [0];
        while let Ok((_, from)) = socket.recv_from(&mut byte) {
            let _ = socket.send_to(format!("{at} {}", from.ip()).as_bytes(), from);
        }
    });
}
