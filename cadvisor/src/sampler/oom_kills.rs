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
    /// Kills of runs that are no longer distinguished.
    retired: HashMap<Owner, u64>,
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
    /// Replaces the list of containers.
    pub(super) fn set_targets(&mut self, list: &[Target]) {
        let mut removed: HashSet<String> =
            self.runs.iter().filter(|(_, run)| !run.ended).map(|(id, _)| id.clone()).collect();
        for target in list {
            let id = &target.container_id;
            if let Some(run) = self.runs.get_mut(id) {
                // The container was restarted with the same id.
                if std::mem::replace(&mut run.ended, false) {
                    self.ended.retain(|ended| ended != id);
                }
                removed.remove(id);
            } else {
                let by_log = self.unknown.remove(id).unwrap_or(0);
                self.runs.insert(id.clone(), Run { owner: owner(target), by_log, by_file: 0, ended: false });
            }
        }
        for id in removed {
            if let Some(run) = self.runs.get_mut(&id) {
                run.ended = true;
                self.ended.push_back(id);
            }
        }
        if self.ended.len() > MAX_ENDED_RUNS {
            self.retire_runs();
        }
    }

    /// Merges the counts of the runs that ended first into those of their containers, and drops the counts of deleted
    /// pods.
    fn retire_runs(&mut self) {
        while self.ended.len() > MAX_ENDED_RUNS / 2 {
            let Some(run) = self.ended.pop_front().and_then(|id| self.runs.remove(&id)) else { continue };
            if run.kills() > 0 {
                *self.retired.entry(run.owner.clone()).or_default() += run.kills();
            }
        }
        // Any pod that exists has a run, that of its sandbox at least; so does a container outside pods.
        let pods: HashSet<&str> = self.runs.values().map(|run| run.owner.0.as_str()).collect();
        let runs = &self.runs;
        self.retired.retain(
            |(pod, name), _| if pod.is_empty() { runs.contains_key(name) } else { pods.contains(pod.as_str()) },
        );
    }

    /// The kernel log reports a kill in this cgroup.
    pub(super) fn add_logged(&mut self, cgroup: &str) {
        let Some(id) = id_in(cgroup) else { return };
        if let Some(run) = self.runs.get_mut(id) {
            run.by_log += 1;
        } else if self.unknown.len() < MAX_UNKNOWN_CGROUPS || self.unknown.contains_key(id) {
            *self.unknown.entry(id.to_owned()).or_default() += 1;
        }
    }

    /// The cgroup of a container counts this many kills.
    pub(super) fn set_counted(&mut self, id: &str, kills: u64) {
        if let Some(run) = self.runs.get_mut(id) {
            // A container that was restarted with the same id counts from zero.
            if kills < run.by_file {
                *self.retired.entry(run.owner.clone()).or_default() += run.kills();
                run.by_log = 0;
            }
            run.by_file = kills;
        }
    }

    /// Kills of each container over all its runs, and of each pod under an empty name.
    pub(super) fn totals(&self) -> HashMap<(&str, &str), u64> {
        let mut totals: HashMap<(&str, &str), u64> = HashMap::new();
        let retired = self.retired.iter().map(|(owner, kills)| (owner, *kills));
        for ((pod, name), kills) in retired.chain(self.runs.values().map(|run| (&run.owner, run.kills()))) {
            if kills > 0 {
                *totals.entry((pod, name)).or_default() += kills;
                if !pod.is_empty() {
                    *totals.entry((pod, "")).or_default() += kills;
                }
            }
        }
        totals
    }

    /// The entry of a target in [`OomKills::totals`]; a pod's own cgroup has no container id.
    pub(super) fn of(totals: &HashMap<(&str, &str), u64>, target: &Target) -> u64 {
        let key = if target.pod_uid.is_empty() {
            ("", target.container_id.as_str())
        } else {
            (target.pod_uid.as_str(), target.container_name.as_str())
        };
        totals.get(&key).copied().unwrap_or(0)
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
        let of = |kills: &OomKills, target: &Target| OomKills::of(&kills.totals(), target);
        let (first, second, pod) = (run('a', "p", "web"), run('b', "p", "web"), run('e', "p", ""));
        // The log reports the kill before the container is known.
        kills.add_logged(&cgroup('a'));
        kills.set_targets(std::slice::from_ref(&first));
        assert_eq!(of(&kills, &first), 1);
        kills.set_counted(&first.container_id, 1);
        assert_eq!(of(&kills, &first), 1, "log and cgroup tell of the same one");
        kills.set_targets(std::slice::from_ref(&second));
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
        kills.set_targets(std::slice::from_ref(&plain));
        kills.set_counted(&plain.container_id, 2);
        kills.set_counted(&plain.container_id, 0);
        assert_eq!(OomKills::of(&kills.totals(), &plain), 2);
        kills.set_counted(&plain.container_id, 1);
        assert_eq!(OomKills::of(&kills.totals(), &plain), 3);
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut kills = OomKills::default();
        for n in 0..5000_u32 {
            let id = format!("{n:064x}");
            kills.add_logged(&format!("/docker/{id}"));
            kills.add_logged(&format!("/docker/{:064x}", n + 1_000_000));
            kills.set_targets(&[Target { container_id: id, ..Target::default() }]);
        }
        kills.set_targets(&[]);
        assert!(kills.runs.len() <= MAX_ENDED_RUNS && kills.ended.len() <= MAX_ENDED_RUNS);
        assert!(
            kills.unknown.len() <= MAX_UNKNOWN_CGROUPS && kills.retired.len() <= MAX_ENDED_RUNS,
            "{}",
            kills.retired.len()
        );
    }
}
