//! For each single failure of a request of a controller or of the scheduler, and of a watch event, the end state is the
//! same as without it. Time is tokio's, so that retries take no real time. One fault is that the controllers and the
//! scheduler end before or after the request, wherever they are, and are started again.
//!
//! Of all pairs of a request or event and a fault each run draws some. `FAULTS=` says how many for each scenario, or `all`;
//! `FAULTS_SEED=` draws those of an earlier run, and `FAULTS_ONLY=EndsAfter` only those of that name.

mod records;
mod scenarios;

use std::{
    collections::BTreeSet,
    future::Future,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    pin::Pin,
};

use windlass_test_api::PATIENCE;
use windlass_tests::{
    Dice,
    api_faults::{Fault, TOUCHED},
};

use super::*;

/// How many pairs of each scenario are drawn.
const DRAWN: usize = 8;
/// How long the end must last.
const LASTS: Duration = Duration::from_secs(30);

/// What users and nodes do, up to the state that they want.
type Act = for<'a> fn(&'a Bed) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

#[derive(Clone, Copy)]
struct Scenario {
    /// The types that are compared.
    plurals: &'static [&'static str],
    /// What becomes of pods.
    phase: &'static str,
    /// Whether the scheduler runs, too.
    schedules: bool,
    /// Creates what exists before controllers start. With it, the start is part of what fails.
    before: Option<Act>,
    /// The controllers' own, with an existing directory.
    config: fn(&Path) -> Config,
    act: Act,
}

impl Scenario {
    fn new(plurals: &'static [&'static str], act: Act) -> Self {
        Self { plurals, phase: "Running", schedules: false, before: None, config: |_| Config::default(), act }
    }
}

/// Letters of generated names.
fn is_generated(end: &str) -> bool {
    end.len() == 5 && end.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte))
}

fn is_uid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A star in place of each uid, also within names and paths.
fn without_uids(text: &str) -> String {
    let (mut short, mut at) = (String::new(), 0);
    while let Some(letter) = text[at..].chars().next() {
        let uid = text.get(at..at + 36).filter(|part| is_uid(part));
        short.push(if uid.is_some() { '*' } else { letter });
        at += uid.map_or(letter.len_utf8(), str::len);
    }
    short
}

/// Takes out what differs from run to run.
fn reduce(value: &mut Value) {
    // What an autoscaler without metrics wants is what it wrote last. A token has the uid of its account.
    const FIELDS: [&str; 8] =
        ["uid", "request", "certificate", "managedFields", "timeAdded", "desiredReplicas", "token", TOUCHED];
    match value {
        Value::Object(fields) => {
            // A generation counts writes; that the last one was seen is what matters.
            let generation = fields.get("metadata").map(|metadata| metadata["generation"].clone());
            if let Some(status) = fields.get_mut("status").filter(|status| !status["observedGeneration"].is_null()) {
                status["isObserved"] = json!(generation == Some(status["observedGeneration"].clone()));
            }
            fields.retain(|key, _| {
                let is_time = key.ends_with("Time") || key.ends_with("Timestamp") || key.ends_with("-time");
                let is_version = key.ends_with("esourceVersion") || key.ends_with("eneration");
                !(is_time || is_version || FIELDS.contains(&key.as_str()))
            });
            fields.values_mut().for_each(reduce);
            // The annotation of another writer may have been the only one.
            fields.retain(|key, value| key != "annotations" || value.as_object().is_none_or(|all| !all.is_empty()));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(reduce);
            // Those of whatever came first: the order is a matter of chance.
            items.sort_by_key(Value::to_string);
        }
        Value::String(text) => {
            *text = without_uids(text);
            if let Some((start, end)) = text.rsplit_once('-')
                && is_generated(end)
            {
                *text = format!("{start}-*");
            }
        }
        _ => {}
    }
}

/// The paths of all that is in a directory.
fn paths(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let within = if path.is_dir() { paths(&path) } else { Vec::new() };
            within.into_iter().chain([path.display().to_string()])
        })
        .collect()
}

/// The state of some types and what is in a directory, without what differs from run to run.
fn state(api: &TestApi, plurals: &[&str], folder: &Path) -> BTreeSet<String> {
    let place = folder.to_string_lossy();
    let reduced = |path: String| without_uids(&path.replace(&*place, "FOLDER"));
    let mut seen: BTreeSet<String> = paths(folder).into_iter().map(reduced).collect();
    for plural in plurals {
        let mut all: Vec<String> = api
            .all(plural)
            .into_iter()
            .map(|mut object| {
                reduce(&mut object);
                format!("{plural} {object}").replace(&*place, "FOLDER")
            })
            .collect();
        all.sort();
        // Identical objects are distinguished by their number.
        seen.extend(all.iter().enumerate().map(|(at, text)| {
            let same = all[..at].iter().filter(|other| *other == text).count();
            format!("{text} #{same}")
        }));
    }
    seen
}

/// How a scenario went: what there was that could fail, and the state in the end.
struct Went {
    pairs: Vec<Fault>,
    state: BTreeSet<String>,
    /// What has failed.
    hit: Option<String>,
}

/// Why a scenario did not end as it should.
fn difference(wanted: &BTreeSet<String>, last: &BTreeSet<String>) -> Option<String> {
    let missing: Vec<_> = wanted.difference(last).collect();
    let other: Vec<_> = last.difference(wanted).collect();
    (!missing.is_empty() || !other.is_empty()).then(|| format!("missing {missing:#?}, there is {other:#?}"))
}

async fn run_once(scenario: Scenario, fault: Option<Fault>, wanted: Option<&BTreeSet<String>>) -> Went {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_owned();
    let config = move || (scenario.config)(&place);
    let mut bed = Bed::stopped().await;
    node(&bed, "n").await;
    if let Some(before) = scenario.before {
        before(&bed).await;
        bed.server.faults.arm(fault);
        bed.start_mortal(config, scenario.schedules);
    } else {
        bed.start_mortal(config, scenario.schedules);
        bed.server.until("serviceaccounts", "they run", |accounts| accounts.len() >= 4).await;
        bed.server.rest().await;
        bed.server.faults.arm(fault);
    }
    let kubelet = Kubelet::run(&bed, scenario.phase);
    (scenario.act)(&bed).await;
    bed.server.rest().await;
    let calls = bed.server.faults.calls();
    let mut last = state(&bed.server, scenario.plurals, folder.path());
    if let Some(wanted) = wanted {
        // What fails may be tried again after a while, and then it is so for good.
        let begun = tokio::time::Instant::now();
        while *wanted != last && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_secs(5)).await;
            last = state(&bed.server, scenario.plurals, folder.path());
        }
        let begun = tokio::time::Instant::now();
        while *wanted == last && begun.elapsed() < LASTS {
            tokio::time::sleep(Duration::from_secs(10)).await;
            last = state(&bed.server, scenario.plurals, folder.path());
        }
        if let Some(why) = difference(wanted, &last) {
            panic!("{fault:?}, {:?}: {why}", calls.hit);
        }
    }
    drop(kubelet);
    bed.end().await;
    Went { pairs: calls.pairs(), state: last, hit: calls.hit }
}

/// The pairs that are run: all, or so many that a seed draws, and the seed.
fn drawn(pairs: &[Fault]) -> (Vec<Fault>, u64) {
    let only = std::env::var("FAULTS_ONLY").unwrap_or_default();
    let pairs: Vec<Fault> = pairs.iter().copied().filter(|pair| format!("{pair:?}").contains(&only)).collect();
    let number = match std::env::var("FAULTS").as_deref() {
        Ok("all") => return (pairs, 0),
        Ok(number) => number.parse().expect("FAULTS is a number or `all`"),
        Err(_) => DRAWN,
    };
    let seed = std::env::var("FAULTS_SEED").map_or_else(
        |_| RandomState::new().hash_one(0),
        |seed| seed.parse().expect("FAULTS_SEED is what an earlier run has printed"),
    );
    let (mut dice, count, mut left) = (Dice::new(seed), pairs.len().min(number), pairs);
    let mut draw = |_| {
        let at = dice.index(left.len());
        left.swap_remove(at)
    };
    ((0..count).map(&mut draw).collect(), seed)
}

/// Runs a scenario without a fault, and then once for each pair of a request or an event and a fault: the end is the same.
async fn each_request_may_fail(scenario: Scenario) {
    let Went { pairs, state, .. } = run_once(scenario, None, None).await;
    assert!(!pairs.is_empty());
    let (taken, seed) = drawn(&pairs);
    let mut hit = 0;
    for pair in &taken {
        println!("FAULTS_SEED={seed} {pair:?}");
        hit += usize::from(run_once(scenario, Some(*pair), Some(&state)).await.hit.is_some());
    }
    println!("{} of {} pairs, FAULTS_SEED={seed}; {hit} came to pass", taken.len(), pairs.len());
}

async fn node(bed: &Bed, name: &str) {
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let status = json!({"conditions": conditions, "allocatable": allocatable, "capacity": allocatable});
    put(&Api::<Node>::all(bed.client.clone()), json!({"metadata": {"name": name}, "status": status})).await;
}

/// Reports pods as running and ready, and ends those that are deleted, until it is dropped.
struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    fn run(bed: &Bed, phase: &'static str) -> Self {
        let (client, mut changes) = (bed.client.clone(), bed.server.watch("pods"));
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"status": {"phase": phase, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let there = bed.server.all("pods");
        Self(tokio::spawn(async move {
            let mut all = there;
            loop {
                for pod in all {
                    let part = |name: &str| pod["metadata"][name].as_str().unwrap();
                    let pods: Api<Pod> = Api::namespaced(client.clone(), part("namespace"));
                    if !pod["metadata"]["deletionTimestamp"].is_null() {
                        let _ = pods.delete(part("name"), &DeleteParams::default().grace_period(0)).await;
                    } else if pod["status"]["phase"] == "Pending" && !pod["spec"]["nodeName"].is_null() {
                        let patch = Patch::Strategic(&status);
                        let _ = pods.patch_status(part("name"), &PatchParams::default(), &patch).await;
                    }
                }
                let Ok(events) = changes.next().await else { return };
                all = events.iter().filter(|event| !event.deleted).map(|event| event.object.value()).collect();
            }
        }))
    }
}
