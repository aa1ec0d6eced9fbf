//! OOM kills of each container, over all its runs. Pure.
//!
//! A cgroup counts its own kills, and is removed with the container that the OOM killer ended; the kernel log reports
//! each kill, and may not be readable. The higher of the two counts is right for one run.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::config::Target;

/// Ended runs that are distinguished, since the log may report a kill after the end of the container.
const MAX_ENDED_RUNS: usize = 1024;
/// Kills in cgroups of containers that are not known yet.
const MAX_UNKNOWN_CGROUPS: usize = 256;

/// A container over all its runs: pod uid and container name, or the id of a container outside pods.
type Owner = (String, String);

#[derive(Debug, Clone, Default)]
struct Run {
    owner: Owner,
    by_log: u64,
    by_file: u64,
    /// What of both is in the totals.
    kept: u64,
    /// The container ended; the log may still report its kill.
    ended: bool,
}

impl Run {
    fn kills(&self) -> u64 {
        self.by_log.max(self.by_file)
    }
}

#[derive(Debug, Default)]
pub(super) struct OomKills {
    /// By container id.
    runs: HashMap<String, Run>,
    ended: VecDeque<String>,
    /// By owner: of all runs of a container, also those that are no longer distinguished, and of each pod under an empty name.
    totals: HashMap<String, HashMap<String, u64>>,
    /// Whose totals have changed since the last look.
    changed: Vec<Owner>,
    unknown: HashMap<String, u64>,
}

fn owner(target: &Target) -> Owner {
    if target.pod_uid.is_empty() {
        (String::new(), target.container_id.clone())
    } else {
        (target.pod_uid.clone(), target.container_name.clone())
    }
}

/// The container's id in the path of a cgroup: the last 64 hexadecimal digits in a row.
fn id_in(cgroup: &str) -> Option<&str> {
    let digits = |part: &&str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
    cgroup.split(|c: char| !c.is_ascii_alphanumeric()).rfind(digits)
}

impl OomKills {
    /// A container runs, or runs again under its id.
    pub(super) fn start(&mut self, target: &Target) {
        let id = &target.container_id;
        if let Some(run) = self.runs.get_mut(id) {
            if std::mem::replace(&mut run.ended, false) {
                self.ended.retain(|ended| ended != id);
            }
            return;
        }
        let by_log = self.unknown.remove(id).unwrap_or(0);
        let owner = owner(target);
        self.count(&owner, by_log);
        self.runs.insert(id.clone(), Run { owner, by_log, by_file: 0, kept: by_log, ended: false });
    }

    /// A container has ended.
    pub(super) fn end(&mut self, id: &str) {
        if let Some(run) = self.runs.get_mut(id)
            && !std::mem::replace(&mut run.ended, true)
        {
            self.ended.push_back(id.to_owned());
        }
        if self.ended.len() > MAX_ENDED_RUNS {
            self.retire_runs();
        }
    }

    /// Adds kills to the totals of a container and of its pod.
    fn count(&mut self, owner: &Owner, kills: u64) {
        if kills == 0 {
            return;
        }
        let (pod, _) = owner;
        let of_pod = (!pod.is_empty()).then(|| (pod.clone(), String::new()));
        for (pod, name) in of_pod.into_iter().chain([owner.clone()]) {
            *self.totals.entry(pod.clone()).or_default().entry(name.clone()).or_default() += kills;
            self.changed.push((pod, name));
        }
    }

    /// Forgets which runs the kills of those were that ended first, and the counts of deleted pods.
    fn retire_runs(&mut self) {
        while self.ended.len() > MAX_ENDED_RUNS / 2 {
            let Some(id) = self.ended.pop_front() else { break };
            self.runs.remove(&id);
        }
        // Any pod that exists has a run, that of its sandbox at least; so does a container outside pods.
        let pods: HashSet<&str> = self.runs.values().map(|run| run.owner.0.as_str()).collect();
        let runs = &self.runs;
        self.totals.retain(|pod, _| pods.contains(pod.as_str()));
        if let Some(outside) = self.totals.get_mut("") {
            outside.retain(|id, _| runs.contains_key(id));
        }
    }

    /// The kernel log reports a kill in this cgroup.
    pub(super) fn add_logged(&mut self, cgroup: &str) {
        let Some(id) = id_in(cgroup) else { return };
        if self.runs.contains_key(id) {
            self.update(id, |run| run.by_log += 1);
        } else if self.unknown.len() < MAX_UNKNOWN_CGROUPS || self.unknown.contains_key(id) {
            *self.unknown.entry(id.to_owned()).or_default() += 1;
        }
    }

    /// The cgroup of a container counts this many kills.
    pub(super) fn set_counted(&mut self, id: &str, kills: u64) {
        self.update(id, |run| {
            // A container that was restarted with the same id counts from zero.
            if kills < run.by_file {
                (run.by_log, run.by_file) = (0, 0);
                run.kept = 0;
            }
            run.by_file = kills;
        });
    }

    /// Changes a run; what it has more than before is added to the totals.
    fn update(&mut self, id: &str, change: impl FnOnce(&mut Run)) {
        let Some(run) = self.runs.get_mut(id) else { return };
        change(run);
        let (kills, owner) = (run.kills(), run.owner.clone());
        let more = kills.saturating_sub(std::mem::replace(&mut run.kept, kills));
        self.count(&owner, more);
    }

    /// Pods and containers whose totals have changed since the last call: pod uid and container name, or no uid and the id.
    pub(super) fn take_changed(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.changed)
    }

    /// Kills of a container over all its runs, or of a pod, whose own cgroup has no container id.
    pub(super) fn of(&self, target: &Target) -> u64 {
        let name = if target.pod_uid.is_empty() { &target.container_id } else { &target.container_name };
        self.totals.get(&target.pod_uid).and_then(|all| all.get(name)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: char, pod: &str, name: &str) -> Target {
        Target {
            container_id: id.to_string().repeat(64),
            pod_uid: pod.to_owned(),
            container_name: name.to_owned(),
            ..Target::default()
        }
    }

    fn cgroup(id: char) -> String {
        format!("/kubepods.slice/kubepods-pod1_2.slice/docker-{}.scope", id.to_string().repeat(64))
    }

    #[test]
    fn counts_outlive_the_runs_that_they_are_of() {
        let mut kills = OomKills::default();
        let of = |kills: &OomKills, target: &Target| kills.of(target);
        let (first, second, pod) = (run('a', "p", "web"), run('b', "p", "web"), run('e', "p", ""));
        // The log reports the kill before the container is known.
        kills.add_logged(&cgroup('a'));
        kills.start(&first);
        assert_eq!(of(&kills, &first), 1);
        kills.set_counted(&first.container_id, 1);
        assert_eq!(of(&kills, &first), 1, "log and cgroup tell of the same one");
        kills.end(&first.container_id);
        kills.start(&second);
        kills.set_counted(&second.container_id, 0);
        assert_eq!((of(&kills, &second), of(&kills, &pod)), (1, 1), "the next run goes on counting");
        // The log reports the kill after the end.
        kills.add_logged(&cgroup('a'));
        kills.add_logged(&cgroup('b'));
        assert_eq!((of(&kills, &second), of(&kills, &run('c', "p", "other"))), (3, 0));
        kills.add_logged("/system.slice/ssh.service");
        assert_eq!(of(&kills, &pod), 3);
    }

    #[test]
    fn a_container_that_starts_again_under_its_id_keeps_its_count() {
        let mut kills = OomKills::default();
        let plain = run('d', "", "");
        kills.start(&plain);
        kills.set_counted(&plain.container_id, 2);
        kills.set_counted(&plain.container_id, 0);
        assert_eq!(kills.of(&plain), 2);
        kills.set_counted(&plain.container_id, 1);
        assert_eq!(kills.of(&plain), 3);
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut kills = OomKills::default();
        for n in 0..5000_u32 {
            let id = format!("{n:064x}");
            kills.add_logged(&format!("/docker/{id}"));
            kills.add_logged(&format!("/docker/{:064x}", n + 1_000_000));
            kills.start(&Target { container_id: id.clone(), ..Target::default() });
            kills.add_logged(&format!("/docker/{id}"));
            kills.end(&id);
        }
        assert!(kills.runs.len() <= MAX_ENDED_RUNS && kills.ended.len() <= MAX_ENDED_RUNS);
        let totals: usize = kills.totals.values().map(HashMap::len).sum();
        assert!(kills.unknown.len() <= MAX_UNKNOWN_CGROUPS && totals <= MAX_ENDED_RUNS, "{totals}");
        assert!(!kills.take_changed().is_empty() && kills.take_changed().is_empty());
    }
}
