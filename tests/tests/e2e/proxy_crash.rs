//! A proxy that is killed while it writes many rules: existing services stay reachable, and the next proxy completes
//! the rules.

use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::signal::Signal,
};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, Windlass, eventually};

const STEADY: &str = "10.96.9.1:80";
/// Enough services for several transactions.
const SERVICES: usize = 300;
const ENDPOINTS: usize = 20;

fn service(name: &str, ip: &str, port: u16, addresses: &[String]) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80, targetPort: {port}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\n\
         ports: [{{port: {port}, protocol: TCP}}]\nendpoints: [{}]\n---\n",
        addresses.iter().map(|a| format!("{{addresses: [{a}], nodeName: node}}")).collect::<Vec<_>>().join(", ")
    )
}

fn enter(testbed: &Testbed) {
    let namespace = std::fs::File::open(testbed.namespace()).expect("the world's namespace is there");
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("this thread may enter it");
}

/// The iptables-restore of the proxy: passes everything on, but can stop in the middle of a large transaction.
struct HeldRestore {
    dir: PathBuf,
}

impl HeldRestore {
    /// Puts it before the real programs of each back end.
    fn new(testbed: &Testbed) -> Self {
        let dir = testbed.dir().join("restore");
        fs::create_dir(&dir).expect("a directory can be made");
        let at = dir.display();
        for name in ["iptables-restore", "iptables-nft-restore", "iptables-legacy-restore"] {
            let real = testbed.sh(&format!("command -v {name}"));
            let script = format!(
                "#!/bin/sh\n\
                 input=$(mktemp {at}/input.XXXXXX)\n\
                 cat > \"$input\"\n\
                 if [ -e {at}/hold ] && [ \"$(wc -l < \"$input\")\" -gt 1000 ]; then\n\
                   echo >> {at}/large\n\
                   if [ \"$(wc -l < {at}/large)\" -gt \"$(cat {at}/hold)\" ]; then\n\
                     {{ head -n 500 \"$input\"; : > {at}/held; while [ -e {at}/hold ]; do sleep 0.1; done; }} | {real} \"$@\"\n\
                     : > {at}/ended\n\
                     exit 1\n\
                   fi\n\
                 fi\n\
                 exec {real} \"$@\" < \"$input\"\n",
                real = real.trim()
            );
            let path = dir.join(name);
            fs::write(&path, script).expect("a script can be written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
        }
        Self { dir }
    }

    /// Stops after this number of large transactions, within the next one.
    fn hold_after(&self, transactions: usize) {
        for name in ["large", "held", "ended"] {
            let _ = fs::remove_file(self.dir.join(name));
        }
        fs::write(self.dir.join("hold"), transactions.to_string()).expect("a file can be written");
    }

    fn has(&self, mark: &str) -> bool {
        self.dir.join(mark).exists()
    }

    /// Ends the input of the transaction that is held, as the death of the writer does, and waits for its program's end.
    fn release(&self) {
        fs::remove_file(self.dir.join("hold")).expect("it was held");
        eventually(DEFAULT_TIMEOUT, "the restore has ended", || {
            anyhow::ensure!(self.has("ended"));
            Ok(())
        });
    }
}

fn start(testbed: &Testbed, windlass: &Windlass, restore: &HeldRestore, log: &str) -> Daemon {
    let mut command = windlass.command("proxy");
    command.env("PATH", format!("{}:{}", restore.dir.display(), std::env::var("PATH").unwrap_or_default()));
    command.arg("--kubeconfig").arg(windlass.kubeconfig()).args(["--node-name", "node"]);
    Daemon::start("windlass proxy", &mut command, &testbed.dir().join(log)).expect("windlass proxy starts")
}

fn endpoint_chains(testbed: &Testbed) -> usize {
    testbed.sh("iptables-save -t nat").lines().filter(|l| l.starts_with(":KUBE-SEP-")).count()
}

#[test]
fn a_proxy_killed_during_a_restore_interrupts_no_service() {
    let testbed = Testbed::without_docker();
    let windlass = testbed.windlass();
    let mut server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let restore = HeldRestore::new(&testbed);
    let address = testbed.sh("ip -4 -o addr show dev eth0 | awk '{print $4}' | cut -d/ -f1").trim().to_owned();
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (testbed, stop, served) = (&testbed, &stop, &served);
    std::thread::scope(|scope| {
        let (ready, listening) = std::sync::mpsc::channel();
        let listener = scope.spawn(move || {
            enter(testbed);
            let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
            listener.set_nonblocking(true).unwrap();
            ready.send(()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            // Stays open until the client has ended too.
            listener
        });
        listening.recv().unwrap();
        // The threads end in any case.
        struct Ending<'a>(&'a AtomicBool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ending = Ending(stop);

        kubectl.apply(&service("steady", "10.96.9.1", 8080, &[address]));
        let mut first = start(testbed, &windlass, &restore, "first.log");
        let steady: SocketAddr = STEADY.parse().unwrap();
        let connect = move || TcpStream::connect_timeout(&steady, Duration::from_secs(2)).map(drop);
        eventually(DEFAULT_TIMEOUT, "the steady service has its rules", || {
            anyhow::ensure!(first.runs(), "{}", first.log());
            anyhow::ensure!(testbed.sh("iptables-save -t nat").contains("default/steady cluster IP"));
            Ok(())
        });
        first.end(Signal::SIGTERM);
        let client = scope.spawn(move || {
            enter(testbed);
            let mut bad = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                match connect() {
                    Ok(()) => _ = served.fetch_add(1, Ordering::Relaxed),
                    Err(e) => bad.push(e.to_string()),
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            bad
        });

        let mut many = String::new();
        for i in 0..SERVICES {
            let addresses: Vec<String> = (0..ENDPOINTS).map(|e| format!("10.250.{}.{}", i % 250, e + 1)).collect();
            let ip = format!("10.96.{}.{}", 20 + i / 250, i % 250 + 1);
            let _ = write!(many, "{}", service(&format!("s{i}"), &ip, 8080, &addresses));
        }
        let created = kubectl.output(&["create", "-f", "-"], &many);
        assert!(created.ok, "{}", created.err);

        // Killed within a transaction, each time a later one.
        for after in [1, 3] {
            restore.hold_after(after);
            let mut proxy = start(testbed, &windlass, &restore, &format!("killed{after}.log"));
            eventually(DEFAULT_TIMEOUT, "a part of the rules", || {
                anyhow::ensure!(proxy.runs(), "{}", proxy.log());
                anyhow::ensure!(restore.has("held"));
                Ok(())
            });
            proxy.end(Signal::SIGKILL);
            restore.release();
            let chains = endpoint_chains(testbed);
            println!("killed after {after} transactions with {chains} chains");
            assert!(chains < SERVICES * ENDPOINTS, "the load was cut short");
        }
        assert!(windlass.try_run("rules", &[]).is_err(), "the load was cut short");
        let mut last = start(testbed, &windlass, &restore, "last.log");
        eventually(DEFAULT_TIMEOUT, "all rules", || {
            anyhow::ensure!(last.runs(), "{}", last.log());
            windlass.try_run("rules", &[]).map(drop)
        });
        assert_eq!(
            endpoint_chains(testbed),
            SERVICES * ENDPOINTS + 4,
            "with those of steady, kubernetes and both of kube-dns"
        );
        drop(ending);
        let bad: Vec<String> = client.join().unwrap();
        assert!(bad.is_empty(), "{} of {}: {:?}", bad.len(), served.load(Ordering::Relaxed), bad.first());
        assert!(served.load(Ordering::Relaxed) > 200);
        listener.join().unwrap();
        last.end(Signal::SIGTERM);
    });
    server.end(Signal::SIGTERM);
}
