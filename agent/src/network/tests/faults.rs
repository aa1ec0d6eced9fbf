//! Programs that fail at any restore, as the real ones do: whatever happens, the kernel ends with the rules of a fresh start.

use windlass_tests::{FaultyIptables, RestoreFault as Fault};

use super::*;

/// What the steps of a pod do with a network whose programs fail: each step is tried again, as its worker does.
struct Life {
    network: Network,
    dir: tempfile::TempDir,
    first: Sandbox,
    second: Sandbox,
    /// The address of the first pod.
    address: Option<IpAddr>,
}

const STEPS: usize = 5;

impl Life {
    async fn begin() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let network = unstarted(dir.path());
        Self { network, dir, first: sandbox().await, second: sandbox().await, address: None }
    }

    async fn try_step(&mut self, step: usize) -> Result<(), NetworkError> {
        let tcp = HostPort { protocol: Protocol::Tcp, ..udp_port() };
        match step {
            0 => self.network.use_ranges(&[cidr(PODS)]).await,
            1 => {
                let addresses = self.network.allocate("first").await?;
                self.address = Some(addresses[0]);
                self.network.attach(request("first", &self.first, &addresses, &[udp_port()])).await.map(drop)
            }
            2 => {
                let addresses = self.network.allocate("second").await?;
                self.network.attach(request("second", &self.second, &addresses, &[tcp])).await.map(drop)
            }
            3 => self.network.detach("first").await,
            _ => self.network.detach("second").await,
        }
    }

    /// Tries a step until it is done; returns how often it failed.
    async fn step(&mut self, step: usize) -> usize {
        for failures in 0..3 {
            match self.try_step(step).await {
                Ok(()) => return failures,
                Err(error) => {
                    // While rules may still lead to it, the pod's address is not given to another pod.
                    if step == 3 {
                        let other = self.network.allocate("other").await.unwrap();
                        assert_ne!(Some(other[0]), self.address, "{error}");
                        self.network.detach("other").await.unwrap();
                    }
                }
            }
        }
        panic!("step {step} fails again and again");
    }
}

/// Every restore of two pods' lives, each fault at each point of it: a step that says it is done is, and after it the
/// kernel has the rules of a fresh start.
#[test]
fn a_fault_at_any_restore_ends_in_the_rules_of_a_fresh_start() {
    let programs = FaultyIptables::new();
    in_own_namespace(move || async move {
        programs.enter();
        let mut wanted = Vec::new();
        let mut life = Life::begin().await;
        for step in 0..STEPS {
            assert_eq!(life.step(step).await, 0);
            wanted.push(fresh(life.dir.path(), &[PODS]));
            assert_eq!(world(), wanted[step]);
        }
        let mut ran = 0;
        for restore in 0..STEPS {
            for (fault, tables) in Fault::ALL.into_iter().flat_map(|fault| (0..=3).map(move |tables| (fault, tables))) {
                // The kernel has nothing to refuse, nor a lock to wait for, behind the last table.
                if tables == 3 && fault != Fault::Killed {
                    continue;
                }
                for table in ["raw", "filter", "nat"] {
                    run(&format!("iptables -t {table} -F"));
                    run(&format!("iptables -t {table} -X"));
                }
                let mut life = Life::begin().await;
                programs.fail(restore, fault, tables);
                for (step, wanted) in wanted.iter().enumerate() {
                    let failures = life.step(step).await;
                    assert_eq!(
                        failures > 0,
                        step == restore,
                        "step {step} with {fault:?} after {tables} tables at {restore}"
                    );
                    assert_eq!(&world(), wanted, "step {step}, {fault:?} after {tables} tables at {restore}");
                }
                assert!(programs.struck());
                ran += 1;
            }
        }
        println!("{ran} pairs of a restore and a fault");
        assert_eq!(ran, STEPS * 10);
    });
}

/// A host port that the kernel refuses is its pod's affair.
#[test]
fn a_host_port_that_is_refused_keeps_no_other_pod_out() {
    let programs = FaultyIptables::new();
    in_own_namespace(move || async move {
        programs.enter();
        let dir = tempfile::tempdir().unwrap();
        let (network, shutdown) = network(dir.path()).await;
        programs.refuse(&["--dport 18081 "]);
        let (bad, good) = (sandbox().await, sandbox().await);
        let refused = HostPort { host_port: 18081, ..udp_port() };
        let addresses = network.allocate("bad").await.unwrap();
        let attached = network.attach(request("bad", &bad, &addresses, std::slice::from_ref(&refused))).await;
        assert!(attached.unwrap_err().to_string().contains("line"));
        let others = network.allocate("good").await.unwrap();
        network.attach(request("good", &good, &others, &[udp_port()])).await.unwrap();
        assert_eq!(world(), fresh(dir.path(), &[PODS]));
        // Nor is it in the way of the next start.
        let again = unstarted(dir.path());
        again.use_ranges(&[cidr(PODS)]).await.unwrap();
        programs.refuse(&[]);
        again.attach(request("bad", &bad, &addresses, &[refused])).await.unwrap();
        assert_eq!(world(), fresh(dir.path(), &[PODS]));
        shutdown.cancel();
    });
}

/// A change of ranges fails half way, and is rolled back or completed.
#[test]
fn a_change_of_ranges_that_fails_is_ended_either_way() {
    const NEW: &str = "10.244.8.0/24";
    for back in [true, false] {
        let programs = FaultyIptables::new();
        in_own_namespace(move || async move {
            programs.enter();
            let dir = tempfile::tempdir().unwrap();
            let network = unstarted(dir.path());
            network.use_ranges(&[cidr(PODS)]).await.unwrap();
            programs.fail_all(Fault::Refused, 1);
            network.use_ranges(&[cidr(NEW)]).await.unwrap_err();
            assert!(programs.struck());
            let to: &'static [&'static str] = if back { &[PODS] } else { &[NEW] };
            network.use_ranges(&[cidr(to[0])]).await.unwrap();
            assert_eq!(world(), fresh(dir.path(), to));
            // With an address of one range there is no other, whatever a later process knows of it.
            let pod = network.allocate("pod").await.unwrap();
            let later = unstarted(dir.path());
            let refused = later.use_ranges(&[cidr("10.244.7.0/24")]).await.unwrap_err().to_string();
            assert!(refused.contains(to[0]), "{refused}");
            later.use_ranges(&[cidr(to[0])]).await.unwrap();
            assert_eq!(later.allocate("pod").await.unwrap(), pod);
            later.detach("pod").await.unwrap();
            later.use_ranges(&[cidr("10.244.7.0/24")]).await.unwrap();
            assert_eq!(world(), fresh(dir.path(), &["10.244.7.0/24"]));
        });
    }
}
