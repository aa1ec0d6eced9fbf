//! How many processes of each container were ended for lack of memory, over all its runs. Pure.
//!
//! A cgroup counts its own, and goes away with the container that the kernel has ended; the kernel's log tells of each,
//! and may not be readable. Whichever of the two has seen more of one run is right about that run.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::config::Subject;

/// Runs that are over are told apart for so long, for the log may come after the end.
const ENDED_MOST: usize = 1024;
/// Kills in cgroups that nobody has told about yet.
const UNKNOWN_MOST: usize = 256;

/// A container over all its runs: pod and name in it, or its id outside pods.
type Owner = (String, String);

#[derive(Debug, Clone, Default)]
struct Run {
    owner: Owner,
    by_log: u64,
    by_file: u64,
    /// The container is gone; the log may still tell of it.
    over: bool,
}

impl Run {
    fn kills(&self) -> u64 {
        self.by_log.max(self.by_file)
    }
}

#[derive(Debug, Default)]
pub(super) struct Kills {
    /// By container id.
    runs: HashMap<String, Run>,
    ended: VecDeque<String>,
    /// Of runs that are no longer told apart.
    folded: HashMap<Owner, u64>,
    unknown: HashMap<String, u64>,
}

fn owner(subject: &Subject) -> Owner {
    if subject.pod_uid.is_empty() {
        (String::new(), subject.container_id.clone())
    } else {
        (subject.pod_uid.clone(), subject.container_name.clone())
    }
}

/// The container's id in the path of a cgroup: the last 64 hexadecimal digits in a row.
fn id_in(cgroup: &str) -> Option<&str> {
    let digits = |part: &&str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
    cgroup.split(|c: char| !c.is_ascii_alphanumeric()).rfind(digits)
}

impl Kills {
    /// Takes over a new list of containers.
    pub(super) fn adopt(&mut self, list: &[Subject]) {
        let mut gone: HashSet<String> =
            self.runs.iter().filter(|(_, run)| !run.over).map(|(id, _)| id.clone()).collect();
        for subject in list {
            let id = &subject.container_id;
            if let Some(run) = self.runs.get_mut(id) {
                // Started again under its id, a container is alive once more.
                if std::mem::replace(&mut run.over, false) {
                    self.ended.retain(|ended| ended != id);
                }
                gone.remove(id);
            } else {
                let by_log = self.unknown.remove(id).unwrap_or(0);
                self.runs.insert(id.clone(), Run { owner: owner(subject), by_log, by_file: 0, over: false });
            }
        }
        for id in gone {
            if let Some(run) = self.runs.get_mut(&id) {
                run.over = true;
                self.ended.push_back(id);
            }
        }
        if self.ended.len() > ENDED_MOST {
            self.fold();
        }
    }

    /// Forgets the runs that ended first, keeps what they counted, and forgets that too of pods that are gone.
    fn fold(&mut self) {
        while self.ended.len() > ENDED_MOST / 2 {
            let Some(run) = self.ended.pop_front().and_then(|id| self.runs.remove(&id)) else { continue };
            if run.kills() > 0 {
                *self.folded.entry(run.owner.clone()).or_default() += run.kills();
            }
        }
        // Whatever of a pod is left, its sandbox at least, is among the runs; so is a container outside pods.
        let pods: HashSet<&str> = self.runs.values().map(|run| run.owner.0.as_str()).collect();
        let runs = &self.runs;
        self.folded.retain(
            |(pod, name), _| if pod.is_empty() { runs.contains_key(name) } else { pods.contains(pod.as_str()) },
        );
    }

    /// The kernel's log tells of a process in this cgroup.
    pub(super) fn logged(&mut self, cgroup: &str) {
        let Some(id) = id_in(cgroup) else { return };
        if let Some(run) = self.runs.get_mut(id) {
            run.by_log += 1;
        } else if self.unknown.len() < UNKNOWN_MOST || self.unknown.contains_key(id) {
            *self.unknown.entry(id.to_owned()).or_default() += 1;
        }
    }

    /// The cgroup of a container counts this many.
    pub(super) fn counted(&mut self, id: &str, kills: u64) {
        if let Some(run) = self.runs.get_mut(id) {
            // A container that was started again under its id counts from nothing.
            if kills < run.by_file {
                *self.folded.entry(run.owner.clone()).or_default() += run.kills();
                run.by_log = 0;
            }
            run.by_file = kills;
        }
    }

    /// Of each container over all its runs, and of each pod by an empty name.
    pub(super) fn totals(&self) -> HashMap<(&str, &str), u64> {
        let mut totals: HashMap<(&str, &str), u64> = HashMap::new();
        let folded = self.folded.iter().map(|(owner, kills)| (owner, *kills));
        for ((pod, name), kills) in folded.chain(self.runs.values().map(|run| (&run.owner, run.kills()))) {
            if kills > 0 {
                *totals.entry((pod, name)).or_default() += kills;
                if !pod.is_empty() {
                    *totals.entry((pod, "")).or_default() += kills;
                }
            }
        }
        totals
    }

    /// What stands in [`Kills::totals`] for a subject; a pod's own has no container id.
    pub(super) fn of(totals: &HashMap<(&str, &str), u64>, subject: &Subject) -> u64 {
        let key = if subject.pod_uid.is_empty() {
            ("", subject.container_id.as_str())
        } else {
            (subject.pod_uid.as_str(), subject.container_name.as_str())
        };
        totals.get(&key).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: char, pod: &str, name: &str) -> Subject {
        Subject {
            container_id: id.to_string().repeat(64),
            pod_uid: pod.to_owned(),
            container_name: name.to_owned(),
            ..Subject::default()
        }
    }

    fn cgroup(id: char) -> String {
        format!("/kubepods.slice/kubepods-pod1_2.slice/docker-{}.scope", id.to_string().repeat(64))
    }

    #[test]
    fn counts_outlive_the_runs_that_they_are_of() {
        let mut kills = Kills::default();
        let of = |kills: &Kills, subject: &Subject| Kills::of(&kills.totals(), subject);
        let (first, second, pod) = (run('a', "p", "web"), run('b', "p", "web"), run('e', "p", ""));
        // The log comes before anybody has told about the container.
        kills.logged(&cgroup('a'));
        kills.adopt(std::slice::from_ref(&first));
        assert_eq!(of(&kills, &first), 1);
        kills.counted(&first.container_id, 1);
        assert_eq!(of(&kills, &first), 1, "log and cgroup tell of the same one");
        kills.adopt(std::slice::from_ref(&second));
        kills.counted(&second.container_id, 0);
        assert_eq!((of(&kills, &second), of(&kills, &pod)), (1, 1), "the next run goes on counting");
        // The log comes after the end.
        kills.logged(&cgroup('a'));
        kills.logged(&cgroup('b'));
        assert_eq!((of(&kills, &second), of(&kills, &run('c', "p", "other"))), (3, 0));
        kills.logged("/system.slice/ssh.service");
        assert_eq!(of(&kills, &pod), 3);
    }

    #[test]
    fn a_container_that_starts_again_under_its_id_keeps_its_count() {
        let mut kills = Kills::default();
        let plain = run('d', "", "");
        kills.adopt(std::slice::from_ref(&plain));
        kills.counted(&plain.container_id, 2);
        kills.counted(&plain.container_id, 0);
        assert_eq!(Kills::of(&kills.totals(), &plain), 2);
        kills.counted(&plain.container_id, 1);
        assert_eq!(Kills::of(&kills.totals(), &plain), 3);
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut kills = Kills::default();
        for n in 0..5000_u32 {
            let id = format!("{n:064x}");
            kills.logged(&format!("/docker/{id}"));
            kills.logged(&format!("/docker/{:064x}", n + 1_000_000));
            kills.adopt(&[Subject { container_id: id, ..Subject::default() }]);
        }
        kills.adopt(&[]);
        assert!(kills.runs.len() <= ENDED_MOST && kills.ended.len() <= ENDED_MOST);
        assert!(kills.unknown.len() <= UNKNOWN_MOST && kills.folded.len() <= ENDED_MOST, "{}", kills.folded.len());
    }
}
