//! Creates and deletes pods while windlass is killed again and again: in the end exactly the expected containers exist,
//! once each.

use std::{collections::BTreeSet, fs, time::Duration};

use windlass_tests::{DEFAULT_TIMEOUT, Dice, Testbed, eventually};

use crate::shell_pod;

fn entries(dir: &std::path::Path) -> Vec<String> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn random_kills_lose_and_leak_nothing() {
    let mut dice = Dice::new(windlass_tests::seed());
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let mut wanted = BTreeSet::new();
    let mut uids = BTreeSet::new();
    let (mut kills, mut steps) = (0, 0);
    while kills < 8 {
        steps += 1;
        let name = format!("p{}", dice.below(6));
        let output = if wanted.contains(&name) {
            kubectl.output(&["delete", "pod", &name, "--wait=false"], "")
        } else {
            // The previous object of the name may still terminate.
            let pod = shell_pod(&name, "Always", "trap exit TERM; while :; do sleep 0.2; done")
                .replace("containers:", "volumes: [{name: m, emptyDir: {medium: Memory}}]\n  containers:");
            kubectl.output(&["create", "-f", "-"], &pod)
        };
        if output.ok && !wanted.remove(&name) {
            wanted.insert(name);
        }
        if let Ok(pods) = kubectl.json(&["pods"]) {
            uids.extend(
                pods["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|p| p["metadata"]["uid"].as_str().map(str::to_owned)),
            );
        }
        std::thread::sleep(Duration::from_millis(dice.below(400)));
        if dice.below(5) == 0 {
            windlass.kill();
            std::thread::sleep(Duration::from_millis(dice.below(500)));
            windlass.up();
            kills += 1;
        }
    }
    println!("{steps} steps, {} pods are wanted", wanted.len());
    eventually(DEFAULT_TIMEOUT, "every pod that is wanted runs, once, and no other", || {
        let pods = kubectl.json(&["pods"])?;
        let there: BTreeSet<String> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|p| p["metadata"]["name"].as_str().unwrap_or("").to_owned())
            .collect();
        anyhow::ensure!(there == wanted, "{there:?} instead of {wanted:?}");
        let mut running: Vec<String> = testbed
            .docker(&["ps", "--format", "{{.Names}}"])
            .lines()
            .map(|n| n.split('_').take(3).collect::<Vec<_>>().join("_"))
            .collect();
        running.sort_unstable();
        let mut expected: Vec<String> =
            wanted.iter().flat_map(|n| [format!("k8s_main_{n}"), format!("k8s_POD_{n}")]).collect();
        expected.sort_unstable();
        anyhow::ensure!(running == expected, "{running:?} instead of {expected:?}");
        kubectl.ready_pods("", wanted.len())?;
        Ok(())
    });
    let _ = kubectl.run(&["delete", "pods", "--all", "--timeout=120s"]);
    assert_eq!(testbed.running_containers(&[]), [""; 0]);
    let network = testbed.dir().join("data/network");
    eventually(DEFAULT_TIMEOUT, "nothing is left of them", || {
        let dead = testbed.docker(&["ps", "-aq"]);
        anyhow::ensure!(dead.is_empty(), "dead containers: {dead}");
        let links = testbed.sh("ip -o link show type veth | grep -v eth0 | wc -l");
        anyhow::ensure!(links.trim() == "0", "{links} ends of links");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let left: Vec<&str> = mounts.lines().filter(|l| uids.iter().any(|uid| l.contains(uid.as_str()))).collect();
        anyhow::ensure!(left.is_empty(), "mounted: {left:?}");
        let folders = entries(&testbed.dir().join("data/pods"));
        anyhow::ensure!(folders.is_empty(), "folders of pods: {folders:?}");
        for uid in &uids {
            // Cgroups of other tests' pods may vanish meanwhile.
            let cgroups =
                testbed.sh(&format!("find /sys/fs/cgroup -type d -path '*kubepods*{uid}*' 2>/dev/null || true"));
            anyhow::ensure!(cgroups.is_empty(), "{cgroups}");
            let addresses = testbed.sh(&format!("grep -rl {uid} {} 2>/dev/null || true", network.display()));
            anyhow::ensure!(addresses.is_empty(), "addresses: {addresses}");
        }
        Ok(())
    });
}
