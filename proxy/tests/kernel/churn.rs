//! Clients that connect continuously while all other services change.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use windlass_proxy::{Config, Variant};

use super::{
    api::Api,
    harness::{Proxy, as_intended, config, eventually, lock_is_free, service, slice, slice6},
    net::{NODE_IP, NODE_IP6, Net, connect},
};

const CHANGES: usize = 500;
/// Services that have clients all the time; each always has an endpoint.
const STEADY: usize = 4;

/// Marsaglia's xorshift: reproducible by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }
}

/// Service `i` targets port 9000 + `i`, where only its own servers listen.
fn steady(i: usize, affinity: bool, local: bool) -> Value {
    let port = json!([{"port": 80, "protocol": "TCP", "targetPort": 9000 + i, "nodePort": 30100 + i}]);
    let affinity = if affinity { "ClientIP" } else { "None" };
    let policy = if local { "Local" } else { "Cluster" };
    service(
        &format!("steady{i}"),
        &format!("172.30.0.{}", 100 + i),
        &json!({"ports": port, "sessionAffinity": affinity, "internalTrafficPolicy": policy,
                "clusterIPs": [format!("172.30.0.{}", 100 + i), format!("fd00:172:30::{}", 100 + i)]}),
    )
}

/// Its slices, one for each family; not always with the same pods.
fn put_slices(api: &Api, i: usize, pods: [&[usize]; 2]) {
    let name = format!("steady{i}");
    for mut object in [slice(&name, pods[0]), slice6(&name, pods[1])] {
        object["ports"][0]["port"] = json!(9000 + i);
        api.put("endpointslices", object);
    }
}

/// Ends the clients also when the test panics: a scope waits for them.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `crowd` further services have no clients, and change too.
fn churn(variant: Variant, crowd: usize) {
    let _free = lock_is_free(variant);
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() % u128::from(u32::MAX)).unwrap()
            + 1
    });
    println!("SEED={seed}");
    let mut random = Random(seed);
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let config =
        Config { min_sync_period: Duration::from_millis(50), ..config(variant, &dir.path().join("before.json")) };
    let api = Api::default();
    api.put("nodes", json!({"metadata": {"name": "n1"}}));
    for i in 0..STEADY {
        for pod in 0..2 {
            net.serve_as(pod, u16::try_from(9000 + i).unwrap(), i);
        }
        api.put("services", steady(i, false, false));
        put_slices(&api, i, [&[0, 1]; 2]);
    }
    let pool = crowd + 40;
    let address = |n: usize| format!("172.30.{}.{}", 1 + n / 200, 1 + n % 200);
    for n in 0..crowd {
        let name = format!("other{n}");
        api.put("services", service(&name, &address(n), &json!({})));
        api.put("endpointslices", slice(&name, &[0, 1]));
    }
    let proxy = Proxy::start(&net, &api, &config);
    as_intended(&api, &config, &net);

    let stop = AtomicBool::new(false);
    let good = AtomicUsize::new(0);
    let bad: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = [&net.node, &net.pods[0], &net.outside]
            .into_iter()
            .enumerate()
            .map(|(who, from)| {
                let (stop, good, outside) = (&stop, &good, &net.outside);
                scope.spawn(move || {
                    let mut bad = Vec::new();
                    let mut i = who;
                    while !stop.load(Ordering::Relaxed) {
                        i = (i + 1) % (2 * STEADY);
                        let (six, i) = (i >= STEADY, i % STEADY);
                        let to = match (from == outside, six) {
                            (true, false) => format!("{NODE_IP}:{}", 30100 + i),
                            (true, true) => format!("[{NODE_IP6}]:{}", 30100 + i),
                            (false, false) => format!("172.30.0.{}:80", 100 + i),
                            (false, true) => format!("[fd00:172:30::{}]:80", 100 + i),
                        };
                        match connect(from, &to) {
                            Ok((_, answered, _)) if answered == i => {
                                good.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok((_, answered, _)) => bad.push(format!("{from} to {to}: service {answered} answered")),
                            Err(e) => bad.push(format!("{from} to {to}: {e}")),
                        }
                    }
                    bad
                })
            })
            .collect();
        let ending = Ending(&stop);
        for change in 0..CHANGES {
            let other = format!("other{}", random.below(pool));
            match random.below(6) {
                0 | 1 => {
                    let i = random.below(STEADY);
                    let mut pods = || [&[0, 1][..], &[0], &[1]][random.below(3)];
                    put_slices(&api, i, [pods(), pods()]);
                }
                2 => {
                    let i = random.below(STEADY);
                    api.put("services", steady(i, random.below(2) == 0, random.below(2) == 0));
                }
                3 => {
                    let ip = address(random.below(pool));
                    // An address that two Services claim for a moment is no business of a client's.
                    api.put("services", service(&other, &ip, &json!({})));
                }
                4 => api.put("endpointslices", slice(&other, [&[][..], &[0], &[0, 1]][random.below(3)])),
                _ => {
                    api.delete("services", &other);
                    api.delete("endpointslices", &format!("{other}-1"));
                }
            }
            if change % 5 == 0 {
                std::thread::sleep(Duration::from_millis(40));
            }
        }
        as_intended(&api, &config, &net);
        // Each kind of client ran meanwhile, however slow the host.
        eventually("enough connections", Duration::from_secs(60), || {
            if good.load(Ordering::Relaxed) > 500 { Ok(()) } else { Err("few connections".to_owned()) }
        });
        drop(ending);
        clients.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    assert!(bad.is_empty(), "{} of {}: {:?}", bad.len(), good.load(Ordering::Relaxed), &bad[..bad.len().min(5)]);
    println!("{} connections", good.load(Ordering::Relaxed));
    proxy.stop();
}

#[test]
fn nobody_notices_changes_on_nf_tables() {
    churn(Variant::Nft, 0);
}

#[test]
fn nobody_notices_changes_on_legacy() {
    churn(Variant::Legacy, 0);
}

#[test]
fn nobody_notices_changes_among_2000_services_on_nf_tables() {
    churn(Variant::Nft, 2000);
}

#[test]
fn nobody_notices_changes_among_2000_services_on_legacy() {
    churn(Variant::Legacy, 2000);
}
