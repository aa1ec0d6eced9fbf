//! Network namespaces of a small cluster: a node, two pods behind it, and a client outside. Pods are routed over the
//! gateway 169.254.1.1, as by the agent.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use windlass_kit::pod_interface::host_interface;

pub(crate) use super::netns::enter;
use super::netns::run;

static NEXT: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Net {
    pub(crate) node: String,
    pub(crate) pods: [String; 2],
    pub(crate) outside: String,
}

/// A namespace with nothing but loopback.
pub(crate) struct Bare(pub(crate) String);

impl Bare {
    pub(crate) fn new() -> Self {
        let name = format!("wlp{}-{}-f", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        Self(name)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

pub(crate) const NODE_IP: &str = "192.168.77.1";
pub(crate) const OUTSIDE_IP: &str = "192.168.77.9";
pub(crate) const POD_UIDS: [&str; 2] = ["uid-of-a", "uid-of-b"];
pub(crate) const POD_IPS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
pub(crate) const NODE_IP6: &str = "2001:db8:77::1";
pub(crate) const POD_IPS6: [&str; 2] = ["fd00:10:180::1", "fd00:10:180::2"];
pub(crate) const OUTSIDE_IP6: &str = "2001:db8:77::9";

impl Net {
    pub(crate) fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests make network namespaces: run them as root");
        let tag = format!("wlp{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = Self {
            node: format!("{tag}-n"),
            pods: [format!("{tag}-a"), format!("{tag}-b")],
            outside: format!("{tag}-x"),
        };
        for name in net.names() {
            run(&format!("ip netns add {name}"));
            run(&format!("ip -n {name} link set lo up"));
            // Addresses are usable at once, link-local ones too.
            run(&format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
        }
        let node = &net.node;
        run(&format!("ip netns exec {node} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"));
        for (i, (pod, (ip, six))) in net.pods.iter().zip(POD_IPS.into_iter().zip(POD_IPS6)).enumerate() {
            let link = host_interface(POD_UIDS[i]);
            run(&format!("ip -n {node} link add {link} type veth peer name eth0 netns {pod}"));
            run(&format!("ip -n {node} addr add 169.254.1.1/32 dev {link}"));
            run(&format!("ip -n {node} addr add fd00:fe::1/128 dev {link} nodad"));
            run(&format!("ip -n {node} link set {link} up"));
            run(&format!("ip -n {node} route add {ip}/32 dev {link}"));
            run(&format!("ip -n {node} -6 route add {six}/128 dev {link}"));
            run(&format!("ip -n {pod} addr add {ip}/32 dev eth0"));
            run(&format!("ip -n {pod} addr add {six}/128 dev eth0 nodad"));
            run(&format!("ip -n {pod} link set eth0 up"));
            run(&format!("ip -n {pod} route add 169.254.1.1 dev eth0"));
            run(&format!("ip -n {pod} route add default via 169.254.1.1 dev eth0"));
            run(&format!("ip -n {pod} -6 route add fd00:fe::1 dev eth0"));
            run(&format!("ip -n {pod} -6 route add default via fd00:fe::1"));
        }
        let outside = &net.outside;
        run(&format!("ip -n {node} link add ext type veth peer name eth0 netns {outside}"));
        run(&format!("ip -n {node} addr add {NODE_IP}/24 dev ext"));
        run(&format!("ip -n {node} addr add {NODE_IP6}/64 dev ext nodad"));
        run(&format!("ip -n {node} link set ext up"));
        run(&format!("ip -n {outside} addr add {OUTSIDE_IP}/24 dev eth0"));
        run(&format!("ip -n {outside} addr add {OUTSIDE_IP6}/64 dev eth0 nodad"));
        run(&format!("ip -n {outside} link set eth0 up"));
        run(&format!("ip -n {outside} route add default via {NODE_IP}"));
        run(&format!("ip -n {outside} -6 route add default via {NODE_IP6}"));
        // Packets of the node's processes to cluster IPs need a route.
        run(&format!("ip -n {node} route add default via {OUTSIDE_IP}"));
        run(&format!("ip -n {node} -6 route add default via {OUTSIDE_IP6}"));
        net
    }

    fn names(&self) -> [&String; 4] {
        [&self.node, &self.pods[0], &self.pods[1], &self.outside]
    }

    /// Answers each connection with the pod's number and the source address, then echoes.
    pub(crate) fn serve(&self, pod: usize, port: u16) {
        self.serve_as(pod, port, pod);
    }

    /// The same under another number.
    pub(crate) fn serve_as(&self, pod: usize, port: u16, number: usize) {
        let name = self.pods[pod].clone();
        std::thread::spawn(move || {
            enter(&name);
            let listener = TcpListener::bind(("::", port)).expect("the port is free in a new namespace");
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut stream: TcpStream = stream;
                    let peer = stream.peer_addr().map(|p| p.ip().to_canonical().to_string()).unwrap_or_default();
                    let _ = stream.write_all(format!("{number} {peer}\n").as_bytes());
                    let mut byte = [0];
                    while stream.read(&mut byte).is_ok_and(|n| n == 1) && stream.write_all(&byte).is_ok() {}
                });
            }
        });
    }

    /// Answers each datagram with the pod's number.
    pub(crate) fn serve_udp(&self, pod: usize, port: u16) {
        let name = self.pods[pod].clone();
        std::thread::spawn(move || {
            enter(&name);
            let socket = UdpSocket::bind(("0.0.0.0", port)).expect("the port is free in a new namespace");
            let mut byte = [0];
            while let Ok((_, from)) = socket.recv_from(&mut byte) {
                let _ = socket.send_to(&[u8::try_from(pod).unwrap()], from);
            }
        });
    }

    pub(crate) fn node_command(&self, command: &str) -> String {
        self::command(&self.node, command)
    }
}

/// The output of a command in a namespace.
pub(crate) fn command(namespace: &str, command: &str) -> String {
    run(&format!("ip netns exec {namespace} {command}"))
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.names() {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Connects from a namespace; returns the pod that answered and the source address that it saw.
pub(crate) fn connect(from: &str, to: &str) -> std::io::Result<(TcpStream, usize, IpAddr)> {
    let (from, to) = (from.to_owned(), to.to_owned());
    std::thread::spawn(move || {
        enter(&from);
        let address: SocketAddr = to.parse().expect("addresses are well formed");
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut line = String::new();
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte)?;
            line.push(char::from(byte[0]));
        }
        let (pod, peer) = line.trim().split_once(' ').expect("the server writes two words");
        Ok((stream, pod.parse().expect("a number"), peer.parse().expect("an address")))
    })
    .join()
    .expect("the thread ends")
}

/// A UDP socket in a namespace that waits 200 ms for an answer.
pub(crate) fn udp(from: &str) -> UdpSocket {
    let from = from.to_owned();
    std::thread::spawn(move || {
        enter(&from);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    })
    .join()
    .expect("the thread ends")
}

/// The response of a server in a namespace, head and body.
pub(crate) fn get(from: &str, address: &str, path: &str) -> String {
    try_get(from, address, path).expect("the server listens")
}

/// The same of one that may not listen yet.
pub(crate) fn try_get(from: &str, address: &str, path: &str) -> std::io::Result<String> {
    let (from, address, path) = (from.to_owned(), address.to_owned(), path.to_owned());
    std::thread::spawn(move || {
        enter(&from);
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })
    .join()
    .expect("the thread ends")
}
