//! A proxy that is killed while it writes many rules: existing services stay reachable, and the next proxy completes
//! the rules.

use std::{
    fmt::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
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

fn start(testbed: &Testbed, windlass: &Windlass, log: &str) -> Daemon {
    let mut command = windlass.command("proxy");
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
        let mut first = start(testbed, &windlass, "first.log");
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

        // Killed after some of the rules are written, each time later.
        for (run, share) in [4, 2].into_iter().enumerate() {
            let mut proxy = start(testbed, &windlass, &format!("killed{run}.log"));
            let started = Instant::now();
            eventually(DEFAULT_TIMEOUT, "a part of the rules", || {
                anyhow::ensure!(proxy.runs(), "{}", proxy.log());
                anyhow::ensure!(endpoint_chains(testbed) > SERVICES * ENDPOINTS / (share * 2));
                Ok(())
            });
            proxy.end(Signal::SIGKILL);
            println!("killed after {:?} with {} chains", started.elapsed(), endpoint_chains(testbed));
        }
        assert!(windlass.try_run("rules", &[]).is_err(), "the load was cut short");
        let mut last = start(testbed, &windlass, "last.log");
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
