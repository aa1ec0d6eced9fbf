//! NetworkPolicies on a real kernel: connections between pods, their node and the outside, of both families, while policies
//! come and go.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::IpAddr,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use windlass_kit::announced_pod::AnnouncedPod;
use windlass_proxy::{
    Variant, cleanup,
    explain::{Packet, trace},
    iptables_save::SavedRuleset,
    kernel_rules,
    model::Family,
    network_policy::IpSets,
};

use super::{
    api::Api,
    harness::{PATIENCE, Proxy, config, eventually, lock_is_free, periodic, repairs, service, slice, tables},
    net::{self, NODE_IP, Net, OUTSIDE_IP, OUTSIDE_IP6, POD_IPS, POD_IPS6, POD_UIDS, connect, get},
};

fn pod(i: usize, app: &str) -> Value {
    json!({"metadata": {"name": format!("pod-{i}"), "namespace": "shop", "labels": {"app": app}},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "c", "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": POD_IPS[i], "podIPs": [{"ip": POD_IPS[i]}, {"ip": POD_IPS6[i]}]}})
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

/// As the pod network announces it, whose uid its link is named by.
fn announced(i: usize, app: &str) -> AnnouncedPod {
    AnnouncedPod {
        namespace: "shop".to_owned(),
        name: format!("pod-{i}"),
        uid: POD_UIDS[i].to_owned(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        ports: vec![("web".to_owned(), "TCP".to_owned(), 8080)],
        addresses: [POD_IPS[i], POD_IPS6[i]].map(|ip| ip.parse().unwrap()).into(),
    }
}

/// Where a pod answers, of both families.
fn at(i: usize, port: u16) -> [String; 2] {
    [format!("{}:{port}", POD_IPS[i]), format!("[{}]:{port}", POD_IPS6[i])]
}

/// Connections of both families pass.
fn pass(from: &str, to: &[String; 2]) {
    for to in to {
        super::answers(from, to);
    }
}

/// Connections of both families are dropped.
fn dropped(from: &str, to: &[String; 2]) {
    for to in to {
        is_dropped(from, to);
    }
}

fn is_dropped(from: &str, to: &str) {
    eventually(&format!("silence of {to}"), PATIENCE, || match connect(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Ok(()),
        other => Err(format!("{:?}", other.map(|_| "an answer"))),
    });
}

/// What the kernel has of policies: rules of both families, without comments of the program and without counters.
fn mangle(net: &Net, variant: Variant) -> Vec<String> {
    let text = tables(net, variant);
    text.lines().filter(|line| line.contains("WINDLASS")).map(str::to_owned).collect()
}

/// Runs in the node's namespace.
fn on_node<T: Send + 'static>(net: &Net, work: impl FnOnce() -> T + Send + 'static) -> T {
    let node = net.node.clone();
    let thread = std::thread::spawn(move || {
        net::enter(&node);
        work()
    });
    thread.join().unwrap()
}

fn enforced(variant: Variant) {
    let _free = lock_is_free(variant);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(variant, &dir.path().join("before.json"));
    if variant == Variant::Legacy {
        config = periodic(config);
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            for table in ["nat", "filter", "mangle"] {
                net.node_command(&format!("{program} -t {table} -S"));
            }
        }
    } else {
        config.repairs = repairs("nft-check=off,proxy-sync=off");
    }
    let before = tables(&net, variant);
    for i in 0..2 {
        net.serve(i, 8080);
        net.serve(i, 9090);
    }
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("namespaces", json!({"metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "shop"}}}));
    api.put("pods", pod(0, "web"));
    api.put("pods", pod(1, "db"));
    api.put("services", service("self", "172.30.0.42", &json!({})));
    api.put("endpointslices", slice("self", &[0]));
    let (proxy, announcer) = Proxy::start_enforcing(&net, &api, &config);
    super::answers(&net.pods[1], "172.30.0.42:80");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (i, app) in ["web", "db"].into_iter().enumerate() {
        assert_eq!(runtime.block_on(announcer.starts(announced(i, app))), Ok(()));
    }
    let [web, db] = &net.pods;

    // Without policies everything passes, and there is no rule.
    pass(&net.outside, &at(1, 8080));
    assert_eq!(mangle(&net, variant), [] as [String; 0]);

    // An isolated pod hears its node and its established connections, and nobody else.
    let (mut open, ..) = connect(&net.outside, &at(1, 8080)[0]).unwrap();
    api.put("networkpolicies", policy("deny", &json!({"podSelector": {}, "policyTypes": ["Ingress"]})));
    dropped(&net.outside, &at(1, 8080));
    dropped(web, &at(1, 8080));
    pass(&net.node, &at(1, 8080));
    open.write_all(b"x").unwrap();
    let mut byte = [0];
    open.read_exact(&mut byte).unwrap();
    // And itself, through a Service.
    super::answers(web, "172.30.0.42:80");
    is_dropped(db, "172.30.0.42:80");

    // The trace of the kernel's own rules says who drops what.
    let inspected = config.clone();
    let text = on_node(&net, move || kernel_rules(&inspected, Family::V4).unwrap());
    let [source, destination] = [POD_IPS[0], POD_IPS[1]].map(|ip| ip.parse::<IpAddr>().unwrap());
    let packet = Packet { source, destination, port: 8080, protocol: "tcp".to_owned(), interface: None };
    let local = [NODE_IP.parse().unwrap()].into_iter().collect();
    let found = trace(&SavedRuleset::parse(&text).unwrap(), &IpSets::parse(&text).unwrap(), &local, &packet);
    assert_eq!(found.outcomes.len(), 1, "{found}");
    assert!(found.outcomes[0].decided_by.ends_with("NetworkPolicy shop/deny"), "{found}");

    // Allowed by labels, and for one port.
    let from_web = json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"], "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": "web"}]}]});
    api.put("networkpolicies", policy("db", &from_web));
    pass(web, &at(1, 8080));
    dropped(web, &at(1, 9090));
    dropped(&net.outside, &at(1, 8080));
    dropped(db, &at(0, 8080));

    // By ranges of addresses, with exceptions.
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let from = |peers: &[Value]| {
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
            {"from": peers, "ports": [{"port": 8080, "endPort": 8090}]}]})
    };
    api.put("networkpolicies", policy("db", &from(&[block("0.0.0.0/0", &[]), block("2001:db8::/32", &[])])));
    pass(&net.outside, &at(1, 8080));
    dropped(&net.outside, &at(1, 9090));
    let (four, six) = (format!("{OUTSIDE_IP}/32"), format!("{OUTSIDE_IP6}/128"));
    let all_but_it = [block("0.0.0.0/0", &[&four]), block("::/0", &[&six])];
    api.put("networkpolicies", policy("db", &from(&all_but_it)));
    dropped(&net.outside, &at(1, 8080));
    pass(web, &at(1, 8080));

    // Egress, too.
    let out = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}],
            "ports": [{"port": "web"}, {"port": 9090}]}]});
    api.put("networkpolicies", policy("web", &out));
    api.put("networkpolicies", policy("db", &json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{}]})));
    pass(web, &at(1, 9090));
    pass(web, &at(1, 8080));
    api.put("namespaces", json!({"metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "other"}}}));
    dropped(web, &at(1, 9090));
    dropped(web, &at(1, 8080));

    // What another program takes away comes back.
    let program = |stem: &str| match variant {
        Variant::Legacy => format!("{stem}-legacy"),
        _ => format!("{stem}-nft"),
    };
    let whole = mangle(&net, variant);
    assert!(whole.len() > 20, "{whole:?}");
    for stem in ["iptables", "ip6tables"] {
        net.node_command(&format!("{} -t mangle -F WINDLASS-POLICY", program(stem)));
        net.node_command(&format!("{} -t mangle -F FORWARD", program(stem)));
    }
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    let is_whole = || match sorted(mangle(&net, variant)) {
        same if same == sorted(whole.clone()) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the rules as before", PATIENCE, is_whole);
    dropped(web, &at(1, 9090));

    // A pod that is announced has its rules when the announcement is answered, whatever the API says of it.
    let new = AnnouncedPod {
        namespace: "shop".to_owned(),
        name: "new".to_owned(),
        uid: "uid-of-new".to_owned(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        ports: Vec::new(),
        addresses: vec!["10.180.0.77".parse().unwrap()],
    };
    assert_eq!(runtime.block_on(announcer.starts(new)), Ok(()));
    let inspected = config.clone();
    let text = on_node(&net, move || kernel_rules(&inspected, Family::V4).unwrap());
    let has_new = |prefix: &str| text.lines().any(|line| line.contains(prefix) && line.ends_with(" 10.180.0.77"));
    assert!(has_new("add WINDLASS-NE-") && has_new("add WINDLASS-NI-"), "{text}");

    // A new process takes over what is there: no counter starts again, for nothing is written.
    proxy.stop();
    dropped(web, &at(1, 9090));
    let counted = |net: &Net| {
        let text = net.node_command(&format!("{}-save -c -t mangle", program("iptables")));
        let drops: Vec<u64> = text
            .lines()
            .filter(|line| line.ends_with("-j DROP"))
            .map(|line| line[1..].split(':').next().unwrap().parse().unwrap())
            .collect();
        drops.iter().sum::<u64>()
    };
    let drops = counted(&net);
    assert!(drops > 0);
    let (proxy, announcer) = Proxy::start_enforcing(&net, &api, &config);
    for (i, app) in ["web", "db"].into_iter().enumerate() {
        assert_eq!(runtime.block_on(announcer.starts(announced(i, app))), Ok(()));
    }
    assert!(counted(&net) >= drops, "{} of {drops}", counted(&net));
    eventually("the rules as before", PATIENCE, is_whole);

    // Without policies nothing is left, and without the proxy all is as before.
    for name in ["deny", "db", "web"] {
        api.delete("networkpolicies", name);
    }
    pass(&net.outside, &at(1, 8080));
    eventually("the end of all rules", PATIENCE, || match mangle(&net, variant) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    });
    api.put("networkpolicies", policy("deny", &json!({"podSelector": {}})));
    dropped(&net.outside, &at(1, 8080));
    proxy.stop();
    on_node(&net, move || cleanup(&config).unwrap());
    assert_eq!(tables(&net, variant), before);
    pass(&net.outside, &at(1, 8080));
}

#[test]
fn network_policies_are_enforced_on_nf_tables() {
    enforced(Variant::Nft);
}

#[test]
fn network_policies_are_enforced_on_legacy() {
    enforced(Variant::Legacy);
}

/// Pods web and db, of which db lets web alone in, on a proxy that looks for changes of others now and then.
fn isolated(net: &Net, dir: &std::path::Path, policy_of_db: &Value) -> (Api, Proxy) {
    let mut config = periodic(config(Variant::Nft, &dir.join("before.json")));
    config.repairs = repairs("nft-check=off");
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    api.put("namespaces", json!({"metadata": {"name": "shop"}}));
    api.put("pods", pod(0, "web"));
    api.put("pods", pod(1, "db"));
    api.put("networkpolicies", policy("db", policy_of_db));
    let (proxy, announcer) = Proxy::start_enforcing(net, &api, &config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (i, app) in ["web", "db"].into_iter().enumerate() {
        assert_eq!(runtime.block_on(announcer.starts(announced(i, app))), Ok(()));
    }
    (api, proxy)
}

/// Empties the IP set of this name, as `ipset flush` does it.
const FLUSH: &str = r"
import socket, struct, sys
name = sys.argv[1].encode() + b'\0'
def attribute(kind, data):
    return struct.pack('=HH', 4 + len(data), kind) + data + b'\0' * (-len(data) % 4)
body = struct.pack('=BBH', 0, 0, 0) + attribute(1, b'\6') + attribute(2, name)
head = struct.pack('=IHHII', 16 + len(body), 6 << 8 | 4, 5, 1, 0)
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
s.send(head + body)
error, = struct.unpack('=i', s.recv(4096)[16:20])
sys.exit(error)
";

/// Nobody is notified of changes of IP sets: they are found when it is looked for them.
#[test]
fn an_ip_set_that_another_program_empties_is_filled_again() {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    net.serve(1, 8080);
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]});
    let (_api, proxy) = isolated(&net, dir.path(), &spec);
    pass(&net.pods[0], &at(1, 8080));
    dropped(&net.outside, &at(1, 8080));
    let metric = |name: &str| {
        let page = get(&net.node, "127.0.0.1:10249", "/metrics");
        let start = format!("windlass_network_policy_{name}{{ip_family=\"IPv4\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&start)).map(|value| value.parse::<f64>().unwrap())
    };
    assert_eq!((metric("in_force"), metric("chains")), (Some(1.0), Some(2.0)));
    let rules = net.node_command("iptables-nft -t mangle -S");
    let sets: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.split("--match-set ").nth(1)?.split(' ').next())
        .filter(|name| !name.starts_with("WINDLASS-SELF"))
        .collect();
    assert_eq!(sets.len(), 2, "the peer's and the pod's own: {rules}");
    for name in sets {
        let before = metric("repairs_total").unwrap();
        let status =
            Command::new("ip").args(["netns", "exec", &net.node, "python3", "-c", FLUSH, name]).status().unwrap();
        assert!(status.success());
        eventually("a repair", PATIENCE, || match metric("repairs_total") {
            Some(now) if now > before => Ok(()),
            other => Err(format!("{other:?}")),
        });
        pass(&net.pods[0], &at(1, 8080));
        dropped(&net.outside, &at(1, 8080));
    }
    proxy.stop();
}

/// Sends INIT chunks of SCTP to the ports, in order, or prints the ports of those that arrive, up to the last.
const SCTP: &str = r"
import socket, struct, sys
what, address, ports = sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3].split(',')]
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
if what == 'receive':
    print('ready', flush=True)
    while True:
        packet = s.recv(4096)
        port, = struct.unpack('!H', packet[(packet[0] & 15) * 4 + 2:][:2])
        print(port, flush=True)
        if port == ports[-1]:
            break
else:
    for port in ports:
        init = struct.pack('!BBHIIHHI', 1, 0, 20, 1, 65536, 1, 1, 1)
        head = lambda sum: struct.pack('!HHI', 5000, port, 0) + sum
        s.sendto(head(struct.pack('<I', crc32c(head(bytes(4)) + init))) + init, (address, 0))
";

/// Packets of SCTP are written by hand, so that the kernel need not have the protocol.
#[test]
fn sctp_is_judged_by_its_ports_and_peers() {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let from_web = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
            "ports": [{"port": 9000, "protocol": "SCTP"}, {"port": 9010, "endPort": 9020, "protocol": "SCTP"}]}]});
    let (_api, proxy) = isolated(&net, dir.path(), &from_web);
    let python = |namespace: &str, what: &str, ports: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "python3", "-c", SCTP, what, POD_IPS[1], ports]);
        command
    };
    let ports = "9001,9009,9000,9021,9010,9020";
    let mut receiver = python(&net.pods[1], "receive", ports).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    assert!(python(&net.outside, "send", "9000,9010,9020").status().unwrap().success());
    assert!(python(&net.pods[0], "send", ports).status().unwrap().success());
    assert_eq!(lines.collect::<Vec<_>>(), ["9000", "9010", "9020"]);
    assert!(receiver.wait().unwrap().success());
    proxy.stop();
}
