//! The network of plugins: its configuration, and attachments next to the plugins that Debian ships.

use super::*;

#[test]
fn a_network_is_configured_once_its_plugins_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, bin) = (dir.path().join("net.d"), dir.path().join("bin"));
    let config = CniConfig {
        conf_dir: conf.clone(),
        bin_dirs: vec![bin.clone()],
        state_dir: "/nowhere".into(),
        netns_dir: "/nowhere".into(),
    };
    let why = || config.configured().unwrap_err().to_string();
    assert!(why().contains("No such file"), "{}", why());
    for folder in [&conf, &bin] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(conf.join("README"), "not a configuration").unwrap();
    assert!(why().ends_with("there is no file that ends in .conf, .conflist or .json"), "{}", why());
    fs::write(conf.join("10-first.conflist"), r#"{"name":"first","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#)
        .unwrap();
    fs::write(bin.join("bridge"), "").unwrap();
    assert!(why().contains(r#"10-first.conflist: the plugin "portmap" is not in"#), "{}", why());
    fs::write(conf.join("20-second.conf"), r#"{"name":"second","type":"bridge"}"#).unwrap();
    assert!(why().contains("10-first.conflist"), "no other takes the place of the first: {}", why());
    fs::write(bin.join("portmap"), "").unwrap();
    assert_eq!(config.configured().unwrap().name, "first");
    // Written in place.
    fs::write(conf.join("10-first.conflist"), r#"{"name":"first","plugins":[{"type":"bri"#).unwrap();
    assert!(why().contains("10-first.conflist: EOF"), "{}", why());
    fs::remove_file(conf.join("10-first.conflist")).unwrap();
    assert_eq!(config.configured().unwrap().name, "second");
}

#[tokio::test]
async fn changes_of_the_directories_are_published() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, bin) = (dir.path().join("net.d"), dir.path().join("bin"));
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("/usr/lib/cni/bridge", bin.join("bridge")).unwrap();
    let config = CniConfig {
        conf_dir: conf.clone(),
        bin_dirs: vec![bin],
        state_dir: dir.path().join("state"),
        netns_dir: dir.path().join("netns"),
    };
    let (publish, mut published) = tokio::sync::mpsc::unbounded_channel();
    let (cni, stop) = (Cni::open(config).unwrap(), CancellationToken::new());
    let following = tokio::spawn({
        let stop = stop.clone();
        async move { cni.watch(|readiness| publish.send(readiness).unwrap(), stop).await }
    });
    let mut next = async |ready: bool| {
        let until = async { while (published.recv().await.unwrap() == Readiness::Ready) != ready {} };
        tokio::time::timeout(Duration::from_secs(15), until).await.expect("nothing was told");
    };
    next(false).await;
    fs::create_dir(&conf).unwrap();
    fs::write(conf.join("10-a.conf"), r#"{"name":"a","type":"bridge"}"#).unwrap();
    next(true).await;
    fs::write(conf.join("10-a.conf"), "{").unwrap();
    next(false).await;
    fs::write(conf.join("10-a.conf"), r#"{"name":"a","type":"bridge"}"#).unwrap();
    next(true).await;
    fs::remove_file(conf.join("10-a.conf")).unwrap();
    next(false).await;
    // A list whose plugins are all in files of their own.
    fs::write(conf.join("10-a.conflist"), r#"{"name":"a","cniVersion":"1.0.0"}"#).unwrap();
    fs::create_dir(conf.join("a")).unwrap();
    fs::write(conf.join("a/1.conf"), r#"{"type":"bridge"}"#).unwrap();
    next(true).await;
    fs::write(conf.join("a/1.conf"), r#"{"type":"brid"}"#).unwrap();
    next(false).await;
    stop.cancel();
    following.await.unwrap();
}

/// A process in a network namespace of its own, as a sandbox is.
struct Sandbox(std::process::Child);

impl Sandbox {
    async fn start() -> Self {
        let child = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        while fs::read_link(format!("/proc/{}/ns/net", child.id())).unwrap() == own {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self(child)
    }

    fn request(&self, uid: &str) -> Attach {
        Attach {
            pod_uid: uid.to_owned(),
            pod_name: "p".to_owned(),
            pod_namespace: "n".to_owned(),
            sandbox: format!("sandbox-of-{uid}"),
            namespace: crate::network::NetworkNamespace::of_process(self.0.id()),
            addresses: Vec::new(),
            host_ports: Vec::new(),
            bandwidth: crate::network::Bandwidth::default(),
            labels: std::collections::BTreeMap::new(),
            named_ports: Vec::new(),
        }
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with one plugin, a script that records its calls: the command, whether its namespace differs from the
/// node's, and whether it was passed a previous result.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new(version: &str, script: &str) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let node = Self { dir: tempfile::tempdir().unwrap() };
        let at = |name: &str| node.dir.path().join(name);
        for name in ["net.d", "bin"] {
            fs::create_dir(at(name)).unwrap();
        }
        let list = format!(r#"{{"cniVersion":"{version}","name":"pods","plugins":[{{"type":"fake"}}]}}"#);
        fs::write(at("net.d/10-pods.conflist"), list).unwrap();
        let record = format!(
            "#!/bin/sh\nD={}\ninput=$(cat)\n\
             if [ -z \"$CNI_NETNS\" ]; then ns=none; \
             elif nsenter --net=\"$CNI_NETNS\" true; then ns=held; else ns=broken; fi\n\
             case $input in *prevResult*) told=result;; *valid-attachments*$CNI_CONTAINERID*) told=valid;; *) told=;; esac\n\
             echo $CNI_COMMAND $ns $told >>$D/calls\n",
            node.dir.path().display()
        );
        fs::write(at("bin/fake"), record + script).unwrap();
        fs::set_permissions(at("bin/fake"), fs::Permissions::from_mode(0o755)).unwrap();
        node
    }

    fn open(&self) -> Cni {
        let at = |name: &str| self.dir.path().join(name);
        let (conf_dir, bin_dirs) = (at("net.d"), vec![at("bin")]);
        Cni::open(CniConfig { conf_dir, bin_dirs, state_dir: at("state"), netns_dir: at("netns") }).unwrap()
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn left(&self) -> usize {
        ["state", "netns"].iter().map(|name| fs::read_dir(self.dir.path().join(name)).unwrap().count()).sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.dir.path().join("netns")).into_iter().flatten().flatten() {
            let _ = namespace::release(&entry.path());
        }
    }
}

const ANSWER: &str = r#"[ $CNI_COMMAND = ADD ] && echo '{"ips":[{"address":"10.1.0.2/24"}]}'
[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","1.0.0","1.1.0"]}'
exit 0"#;

#[tokio::test]
async fn the_namespace_is_there_until_plugins_have_disconnected_it() {
    let node = Node::new("1.0.0", &format!("[ $CNI_COMMAND = DEL ] && [ ! -e $D/may ] && exit 1\n{ANSWER}"));
    let mut sandbox = Sandbox::start().await;
    let cni = node.open();
    assert_eq!(cni.attach(sandbox.request("u")).await.unwrap().len(), 1);
    assert_eq!(cni.attach(sandbox.request("u")).await.unwrap().len(), 1, "it is attached already");
    // The sandbox dies, and the agent too: the namespace is still there.
    sandbox.end();
    let cni = node.open();
    assert_eq!(cni.pods(), ["u"]);
    cni.detach("u").await.unwrap_err();
    assert!(cni.addresses_of("u").is_empty(), "what is half disconnected is of no use");
    // Over another end of the agent.
    let cni = node.open();
    fs::write(node.dir.path().join("may"), "").unwrap();
    cni.detach("u").await.unwrap();
    assert_eq!(node.calls(), ["ADD held", "DEL held result", "DEL held result"]);
    assert_eq!((cni.pods().len(), node.left()), (0, 0));
    cni.detach("u").await.unwrap();
}

#[tokio::test]
async fn what_does_not_come_to_its_end_is_undone_in_the_namespace() {
    for (script, why) in [
        ("[ $CNI_COMMAND = ADD ] && { echo '{\"code\":7,\"msg\":\"no\"}'; exit 1; }; exit 0", "failed at ADD: no"),
        ("exit 0", "cannot be parsed"),
        ("[ $CNI_COMMAND = ADD ] && echo '{}'; exit 0", "gave the pod no address"),
    ] {
        let node = Node::new("0.3.1", script);
        let sandbox = Sandbox::start().await;
        let cni = node.open();
        let error = cni.attach(sandbox.request("u")).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(node.calls(), ["ADD held", "DEL held"], "{script}");
        assert_eq!((cni.pods().len(), node.left()), (0, 0), "{script}");
    }
}

#[tokio::test]
async fn a_new_sandbox_and_a_new_run_of_the_machine() {
    let node = Node::new("0.3.1", ANSWER);
    let (old, new) = (Sandbox::start().await, Sandbox::start().await);
    let cni = node.open();
    cni.attach(old.request("u")).await.unwrap();
    let mut request = new.request("u");
    request.sandbox = "another".to_owned();
    cni.attach(request).await.unwrap();
    // No result before version 0.4.0.
    assert_eq!(node.calls(), ["ADD held", "DEL held", "ADD held"]);
    // The machine is started again.
    namespace::release(&cni.namespace_file("u")).unwrap();
    node.open().detach("u").await.unwrap();
    assert_eq!(node.calls().last().unwrap(), "DEL none");
    assert_eq!(node.left(), 0);
}

#[tokio::test]
async fn plugins_that_can_be_asked_are_asked() {
    let status = r#"[ $CNI_COMMAND = STATUS ] && [ -e $D/down ] && { echo '{"code":50,"msg":"no daemon"}'; exit 1; }"#;
    let node = Node::new("1.1.0", &format!("{status}\n{ANSWER}"));
    let cni = node.open();
    assert_eq!(cni.readiness().await, Readiness::Ready);
    fs::write(node.dir.path().join("down"), "").unwrap();
    let why = cni.readiness().await;
    assert!(why.problem().is_some_and(|why| why.ends_with("failed at STATUS: no daemon")), "{why:?}");
    cni.collect_garbage().await.unwrap();
    // It is asked for its versions once, with a namespace that only looks like one.
    assert_eq!(node.calls(), ["VERSION broken", "STATUS none", "STATUS none", "GC none valid"]);
    let older = Node::new("1.0.0", ANSWER);
    let cni = older.open();
    cni.collect_garbage().await.unwrap();
    assert_eq!(cni.readiness().await, Readiness::Ready);
    assert_eq!(older.calls(), ["VERSION broken"]);
}

/// What is being made for a pod that is in no list yet would be garbage.
#[tokio::test]
async fn nothing_is_connected_while_garbage_is_collected() {
    let wait = "[ $CNI_COMMAND = GC ] && { touch $D/collecting; while ! [ -e $D/may ]; do sleep 0.01; done; }";
    let node = Node::new("1.1.0", &format!("{wait}\n{ANSWER}"));
    let sandbox = Sandbox::start().await;
    let cni = node.open();
    let at = |name: &str| node.dir.path().join(name);
    let collect = async {
        cni.collect_garbage().await.unwrap();
        assert_eq!(node.calls(), ["GC none valid"], "the pod waits for its end");
    };
    let attach = async {
        while !at("collecting").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut attaching = Box::pin(cni.attach(sandbox.request("u")));
        let waits = tokio::time::timeout(Duration::from_millis(200), &mut attaching).await;
        assert!(waits.is_err(), "{waits:?}");
        fs::write(at("may"), "").unwrap();
        attaching.await.unwrap();
    };
    tokio::join!(collect, attach);
    assert_eq!(node.calls(), ["GC none valid", "ADD held"]);
    cni.detach("u").await.unwrap();
}

/// After a start without a configuration, or with a plugin that is not ready, garbage is collected when the network is.
#[tokio::test]
async fn garbage_that_is_left_is_collected_when_the_network_is_ready() {
    let fails = r#"[ $CNI_COMMAND = GC ] && [ -e $D/down ] && { echo '{"code":50,"msg":"no daemon"}'; exit 1; }"#;
    let status = r#"[ $CNI_COMMAND = STATUS ] && [ -e $D/down ] && { echo '{"code":50,"msg":"no daemon"}'; exit 1; }"#;
    for is_configured in [false, true] {
        let node = Node::new("1.1.0", &format!("{fails}\n{status}\n{ANSWER}"));
        let [down, conf, aside] = ["down", "net.d", "aside"].map(|name| node.dir.path().join(name));
        fs::write(&down, "").unwrap();
        if !is_configured {
            fs::rename(&conf, &aside).unwrap();
        }
        let cni = node.open();
        assert_eq!(cni.collect_garbage().await.is_ok(), !is_configured);
        let (published, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let watch = cni.watch(|readiness| drop(published.send(readiness)), stop.clone());
        let come = async {
            assert_ne!(seen.recv().await.unwrap(), Readiness::Ready);
            fs::remove_file(&down).unwrap();
            if is_configured {
                // Has the watch look again at once.
                fs::write(conf.join("touched"), "").unwrap();
            } else {
                fs::rename(&aside, &conf).unwrap();
            }
            while seen.recv().await.unwrap() != Readiness::Ready {}
            while node.calls().last().is_none_or(|call| call != "GC none valid") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            fs::write(conf.join("again"), "").unwrap();
            while seen.recv().await.unwrap() != Readiness::Ready {}
            stop.cancel();
        };
        tokio::join!(watch, come);
        let collected = node.calls().iter().filter(|call| call.starts_with("GC")).count();
        assert_eq!(collected, 1 + usize::from(is_configured), "once it was possible: {:?}", node.calls());
    }
}

#[tokio::test]
async fn a_plugin_speaks_the_version_of_its_list() {
    let supports = |versions: &str| {
        let answer = format!(r#"{{"cniVersion":"1.0.0","supportedVersions":[{versions}]}}"#);
        format!("[ $CNI_COMMAND = VERSION ] && echo '{answer}'; exit 0")
    };
    for (script, version, problem) in [
        (supports(r#""0.4.0","1.0.0""#), "1.0.0", None),
        (supports(r#""0.3.1","0.4.0""#), "1.0.0", Some("plugin fake does not support config version \"1.0.0\"")),
        // Older than the question.
        ("echo '{\"code\":4,\"msg\":\"unknown CNI_COMMAND: VERSION\"}'; exit 1".to_owned(), "0.1.0", None),
        (
            "echo '{\"code\":4,\"msg\":\"unknown CNI_COMMAND: VERSION\"}'; exit 1".to_owned(),
            "0.2.0",
            Some("does not support config version \"0.2.0\", but 0.1.0"),
        ),
        // It does not say.
        ("exit 1".to_owned(), "1.0.0", None),
    ] {
        let node = Node::new(version, &script);
        let found = node.open().readiness().await;
        match problem {
            None => assert_eq!(found, Readiness::Ready, "{script}"),
            Some(why) => assert!(found.problem().is_some_and(|text| text.contains(why)), "{script}: {found:?}"),
        }
    }
}

/// A new run of the agent asks once for each attachment that it finds.
#[tokio::test]
async fn an_attachment_is_checked_once_in_a_run() {
    for (version, setting, checks) in [("0.4.0", "", 1), ("1.0.0", r#","disableCheck":true"#, 0), ("0.3.1", "", 0)] {
        let node = Node::new(version, &format!("[ $CNI_COMMAND = CHECK ] && exit 1\n{ANSWER}"));
        let list = format!(r#"{{"cniVersion":"{version}","name":"pods","plugins":[{{"type":"fake"}}]{setting}}}"#);
        fs::write(node.dir.path().join("net.d/10-pods.conflist"), list).unwrap();
        let sandbox = Sandbox::start().await;
        let cni = node.open();
        cni.attach(sandbox.request("u")).await.unwrap();
        cni.attach(sandbox.request("u")).await.unwrap();
        assert_eq!(node.calls(), ["ADD held"], "made by this run");
        let cni = node.open();
        for _ in 0..2 {
            assert_eq!(cni.attach(sandbox.request("u")).await.unwrap().len(), 1, "it is told of, not undone");
        }
        assert_eq!(node.calls()[1..], vec!["CHECK held result"; checks][..], "{version}{setting}");
        cni.detach("u").await.unwrap();
    }
}

/// Configured below a directory, with the plugins of this machine.
fn with_debians_plugins(dir: &Path) -> Cni {
    let at = |name: &str| dir.join(name);
    let config = CniConfig {
        conf_dir: at("net.d"),
        bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
        state_dir: at("state"),
        netns_dir: at("netns"),
    };
    Cni::open(config).unwrap()
}

/// The plugins that Debian ships, each of which leaves something of its own: a bridge that masquerades by pod, addresses
/// on disk, ports of the host, a firewall, limits of bandwidth.
#[test]
fn ten_pods_of_debians_plugins_leave_nothing() {
    crate::network::tests::in_own_namespace(async || {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("net.d")).unwrap();
        let list = serde_json::json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni-test", "isGateway": true, "ipMasq": true, "hairpinMode": true,
             "ipam": {"type": "host-local", "dataDir": at("leases"), "ranges": [[{"subnet": "10.98.0.0/24"}]],
                      "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}}]});
        fs::write(at("net.d/10-pods.conflist"), list.to_string()).unwrap();
        let cni = with_debians_plugins(dir.path());
        // Of each pod the rules of its address and its chains, whose names are hashes; the plugins' own chains stay.
        let rules = || {
            let saved = std::process::Command::new("iptables-save").output().unwrap();
            let text = String::from_utf8(saved.stdout).unwrap();
            let of_pod =
                |line: &&str| line.contains("10.98.0.") || line.contains("CNI-DN-") || line.contains("sandbox-of-");
            text.lines().filter(of_pod).map(str::to_owned).collect::<Vec<_>>()
        };
        let leases = || {
            let all = fs::read_dir(at("leases/pods")).into_iter().flatten().flatten().map(|e| e.file_name());
            all.filter(|name| name.to_string_lossy().starts_with("10.")).count()
        };
        let mut sandboxes = Vec::new();
        for i in 0..10 {
            let (uid, sandbox) = (format!("pod-{i}"), Sandbox::start().await);
            let port = crate::network::HostPort {
                host_ip: None,
                host_port: 30000 + i,
                container_port: 80,
                protocol: crate::network::Protocol::Tcp,
            };
            let bandwidth = crate::network::Bandwidth { ingress: Some(10_000_000), egress: None };
            let request = Attach { host_ports: vec![port], bandwidth, ..sandbox.request(&uid) };
            assert_eq!(cni.attach(request).await.unwrap().len(), 1);
            sandboxes.push((uid, sandbox));
        }
        assert_eq!(leases(), 10);
        assert!(rules().len() > 30, "{:#?}", rules());
        for (i, (uid, sandbox)) in sandboxes.iter_mut().enumerate() {
            // Half of them die first.
            if i % 2 == 0 {
                sandbox.end();
            }
            cni.detach(uid).await.unwrap();
        }
        assert_eq!((leases(), rules()), (0, Vec::new()));
        for left in ["state", "netns"] {
            assert_eq!(fs::read_dir(at(left)).unwrap().count(), 0, "{left}");
        }
        let links = std::process::Command::new("ip").args(["-o", "link"]).output().unwrap();
        let links = String::from_utf8(links.stdout).unwrap();
        assert!(!links.contains("veth"), "{links}");
    });
}

/// Debian's plugins say of a pod whose network was damaged that it is.
#[test]
fn debians_plugins_check_what_they_have_made() {
    crate::network::tests::in_own_namespace(async || {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("net.d/pods")).unwrap();
        let list = serde_json::json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni-test", "isGateway": true,
             "ipam": {"type": "host-local", "dataDir": at("leases"), "ranges": [[{"subnet": "10.98.0.0/24"}]]}}]});
        fs::write(at("net.d/10-pods.conflist"), list.to_string()).unwrap();
        fs::write(at("net.d/pods/tuning.conf"), r#"{"type":"tuning","mtu":1400}"#).unwrap();
        let cni = with_debians_plugins(dir.path());
        assert_eq!(cni.readiness().await, Readiness::Ready);
        let sandbox = Sandbox::start().await;
        cni.attach(sandbox.request("u")).await.unwrap();
        let attachment = cni.attachment("u").unwrap();
        cni.check(&attachment).await.unwrap();
        let inside = |command: &str| {
            let pid = sandbox.0.id().to_string();
            let output =
                std::process::Command::new("nsenter").args(["-t", &pid, "-n"]).args(command.split(' ')).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert!(inside("ip link show eth0").contains("mtu 1400"), "the plugin in its own file was called");
        inside("ip link set eth0 mtu 1300");
        let why = cni.check(&attachment).await.unwrap_err().to_string();
        assert!(why.contains(r#"the network plugin "tuning" failed at CHECK"#), "{why}");
        inside("ip address flush dev eth0");
        let why = cni.check(&attachment).await.unwrap_err().to_string();
        assert!(why.contains(r#"the network plugin "bridge" failed at CHECK"#), "{why}");
        cni.detach("u").await.unwrap();
        // One that is too old for the list is found before a pod needs it.
        let list = list.to_string().replace("1.0.0", "1.1.0");
        fs::write(at("net.d/10-pods.conflist"), list).unwrap();
        let problem = cni.readiness().await;
        let text = "plugin bridge does not support config version \"1.1.0\"";
        assert!(problem.problem().is_none_or(|why| why.contains(text)), "{problem:?}");
    });
}
