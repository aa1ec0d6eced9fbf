//! A node, its pods, a client pod and the outside, as network namespaces with addresses of both families.

use std::{
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use nix::sys::{
    socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt},
    time::TimeVal,
};
use windlass_proxy::model::Family;

use crate::{
    netns::{enter, run},
    tables::{Flow, NODE, twin},
};

static NEXT: AtomicUsize = AtomicUsize::new(0);

const ENDPOINTS: usize = 5;
/// What endpoints listen at.
const TCP: [u16; 3] = [80, 8443, 5353];
const UDP: u16 = 53;

pub(crate) struct Net {
    tag: String,
}

impl Net {
    fn node(&self) -> String {
        format!("{}-n", self.tag)
    }

    fn pod(&self, octet: usize) -> String {
        format!("{}-{octet}", self.tag)
    }

    fn client_pod(&self) -> String {
        format!("{}-c", self.tag)
    }

    fn outside(&self) -> String {
        format!("{}-x", self.tag)
    }

    fn names(&self) -> Vec<String> {
        let pods = (1..=ENDPOINTS).map(|i| self.pod(i));
        pods.chain([self.node(), self.client_pod(), self.outside()]).collect()
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
        let node = net.node();
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.route_localnet=1"]
        {
            run(&format!("ip netns exec {node} sysctl -qw {setting}"));
        }
        for (i, octet) in (1..=ENDPOINTS).enumerate() {
            net.attach(&net.pod(octet), &format!("p{i}"), &format!("10.180.0.{octet}"));
        }
        net.attach(&net.client_pod(), "pc", "10.0.0.2");
        net.connect_outside();
        for octet in 1..=ENDPOINTS {
            net.serve(octet);
        }
        net
    }

    /// A routed pod: the node's side has addresses of its own, so that a masqueraded source is another one than
    /// any of the node's.
    fn attach(&self, pod: &str, link: &str, ip: &str) {
        let (node, six) = (self.node(), twin(ip, Family::V6));
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
        run(&format!("ip -n {pod} route add default via 169.254.1.1"));
        run(&format!("ip -n {pod} -6 route add fd00:fe::1 dev eth0"));
        run(&format!("ip -n {pod} -6 route add default via fd00:fe::1"));
    }

    fn connect_outside(&self) {
        let (node, outside) = (self.node(), self.outside());
        run(&format!("ip -n {node} link add ext type veth peer name eth0 netns {outside}"));
        run(&format!("ip -n {node} addr add 198.51.100.1/24 dev ext"));
        run(&format!("ip -n {node} addr add 2001:db8:ffff::1/64 dev ext nodad"));
        run(&format!("ip -n {node} link set ext up"));
        run(&format!("ip -n {outside} addr add 198.51.100.2/24 dev eth0"));
        run(&format!("ip -n {outside} addr add 2001:db8:ffff::2/64 dev eth0 nodad"));
        run(&format!("ip -n {outside} link set eth0 up"));
        for (family, via_node, via_outside) in
            [(Family::V4, "198.51.100.1", "198.51.100.2"), (Family::V6, "2001:db8:ffff::1", "2001:db8:ffff::2")]
        {
            let six = if family == Family::V6 { "-6 " } else { "" };
            for ip in ["203.0.113.2", "203.0.113.130"] {
                let nodad = if family == Family::V6 { " nodad" } else { "" };
                run(&format!("ip -n {outside} addr add {}/{} dev eth0{nodad}", twin(ip, family), family.bits()));
            }
            for ip in NODE {
                let nodad = if family == Family::V6 { " nodad" } else { "" };
                run(&format!("ip -n {node} addr add {}/{} dev lo{nodad}", twin(ip, family), family.bits()));
            }
            run(&format!("ip -n {outside} {six}route add default via {via_node}"));
            run(&format!("ip -n {node} {six}route add default via {via_outside}"));
        }
        // What the node sends on to nowhere must not come back to it.
        for program in ["iptables-nft", "ip6tables-nft"] {
            run(&format!("ip netns exec {outside} {program} -A FORWARD -j DROP"));
        }
    }

    /// Answers with our address and port, and the source that is seen.
    fn serve(&self, octet: usize) {
        let name = self.pod(octet);
        let mine = move |to: SocketAddr| {
            let ip = to.ip().to_canonical();
            SocketAddr::new(ip, to.port()).to_string()
        };
        let (ready, wait) = std::sync::mpsc::channel();
        for port in TCP {
            let (name, ready) = (name.clone(), ready.clone());
            std::thread::spawn(move || {
                enter(&name);
                let listener = TcpListener::bind(("::", port)).expect("the port is free in a new namespace");
                ready.send(()).unwrap();
                for mut stream in listener.incoming().flatten() {
                    let (Ok(me), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { continue };
                    let _ = stream.write_all(format!("{} {}", mine(me), peer.ip().to_canonical()).as_bytes());
                }
            });
        }
        for family in Family::BOTH {
            let (name, ready) = (name.clone(), ready.clone());
            std::thread::spawn(move || {
                enter(&name);
                let ip: IpAddr = twin(&format!("10.180.0.{octet}"), family).parse().unwrap();
                let socket = UdpSocket::bind((ip, UDP)).expect("the port is free in a new namespace");
                ready.send(()).unwrap();
                let mut byte = [0];
                while let Ok((_, from)) = socket.recv_from(&mut byte) {
                    let _ = socket.send_to(format!("{} {}", SocketAddr::new(ip, UDP), from.ip()).as_bytes(), from);
                }
            });
        }
        for _ in 0..TCP.len() + 2 {
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

    /// Whether a flow can be a conversation here.
    pub(crate) fn can_send(&self, flow: &Flow) -> bool {
        flow.protocol != "sctp" && flow.ends[0] != "ACCEPT" && self.place(flow.source).is_some()
    }

    /// The namespace that has an address.
    fn place(&self, source: IpAddr) -> Option<String> {
        let is = |ip: &str| Family::BOTH.iter().any(|f| twin(ip, *f).parse() == Ok(source));
        if source.is_loopback() || NODE.iter().any(|ip| is(ip)) {
            return Some(self.node());
        }
        if is("10.0.0.2") {
            return Some(self.client_pod());
        }
        if is("203.0.113.2") || is("203.0.113.130") {
            return Some(self.outside());
        }
        (1..=ENDPOINTS).find(|octet| is(&format!("10.180.0.{octet}"))).map(|octet| self.pod(octet))
    }

    pub(crate) fn client(&self, source: IpAddr) -> Client {
        Client { namespace: self.place(source).expect("asked before") }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.names() {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Sends from one namespace, with a source of one's choice.
pub(crate) struct Client {
    namespace: String,
}

impl Client {
    /// Runs on a thread inside the namespace.
    fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.namespace);
                work()
            });
            thread.join().expect("the thread ends")
        })
    }

    pub(crate) fn connect(&self, source: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        self.inside(|| {
            let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            let wait = TimeVal::new(limit.as_secs().cast_signed(), limit.subsec_micros().into());
            // Both hold for the handshake too.
            setsockopt(&socket, sockopt::SendTimeout, &wait)?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &wait)?;
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
            connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
            Ok(TcpStream::from(socket))
        })
    }

    /// Sends a datagram and waits for the answer.
    pub(crate) fn ask(&self, source: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<String> {
        self.inside(|| {
            let socket = UdpSocket::bind((source, 0))?;
            socket.set_read_timeout(Some(limit))?;
            socket.connect(to)?;
            socket.send(b"?")?;
            let mut buffer = [0; 200];
            let len = socket.recv(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
        })
    }
}
