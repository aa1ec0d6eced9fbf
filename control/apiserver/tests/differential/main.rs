//! Sends the same requests to a real kube-apiserver and to ours: responses and watch events agree, or the difference is
//! in [`known_differences::KNOWN_DIFFERENCES`] with its reason. No controllers run on either side, so that nothing happens
//! between two requests.
//!
//! The real one is that of the directory that `KUBEBUILDER_ASSETS` names; without it the two comparisons are ignored. Random
//! sequences have a fixed set of seeds; `DIFFERENTIAL_SEED=7` runs the one of that seed instead. `DIFFERENTIAL_ALL` prints
//! every difference.

#![allow(clippy::print_stdout, reason = "a test says what it saw")]

mod api_server;
mod broken;
#[path = "../config/mod.rs"]
mod config;
mod conversions;
mod definitions;
#[path = "../extension_server/mod.rs"]
mod extension_server;
mod extensions;
mod kinds;
mod known_differences;
mod managed;
mod normalize;
mod policies;
mod random;
mod random_applies;
#[path = "../../src/kinds/tests/recorded/mod.rs"]
mod recorded;
mod scenario;
#[path = "../webhook_server/mod.rs"]
mod webhook_server;
mod webhooks;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_control::{ControlPlane, apiserver::User};
use windlass_tests::{Testbed, client_without_retries, cluster::assets, skip};

use api_server::{ApiServer, JSON, Step};
use definitions::Settles;
use known_differences::{
    InAll, KNOWN_DIFFERENCES, KnownDifference, PAIRS, is_of_scenario, is_random, is_recording, pair,
};
use normalize::{Difference, differences, is_zero, matches_pattern, normalize};
use random::Rng;
use scenario::{NODE, fixtures, pod, step, steps, within};

/// Environment variable with a seed that replaces [`SEEDS`].
const SEED: &str = "DIFFERENTIAL_SEED";
/// The seeds of random sequences.
const SEEDS: [u64; 4] = [1, 7, 23, 42];
const RANDOM_STEPS: usize = 250;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let skipped = assets().is_none();
    if skipped && !arguments.list {
        skip("control-plane", "KUBEBUILDER_ASSETS is not set");
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("normalize::generated_values_are_blanked", normalize::generated_values_are_blanked),
        trial("normalize::differences_are_located_by_pointer", normalize::differences_are_located_by_pointer),
        trial("normalize::patterns_match_with_wildcards", normalize::patterns_match_with_wildcards),
        trial("fixed_scenario_is_answered_alike", fixed_scenario).with_ignored_flag(skipped),
        trial("every_kind_is_answered_alike", kinds::every_kind_is_answered_alike).with_ignored_flag(skipped),
        trial("what_is_broken_is_refused_alike", broken::what_is_broken_is_refused_alike).with_ignored_flag(skipped),
        trial("random_sequences_are_answered_alike", random_sequences).with_ignored_flag(skipped),
        trial("random_applies_are_answered_alike", random_applies).with_ignored_flag(skipped),
        trial("definitions_are_answered_alike", definitions_and_their_objects).with_ignored_flag(skipped),
        trial("webhooks_are_asked_alike", webhooks::webhooks_are_asked_alike).with_ignored_flag(skipped),
        trial("objects_are_converted_alike", conversions::objects_are_converted_alike).with_ignored_flag(skipped),
        trial("extensions_are_aggregated_alike", extensions::extensions_are_aggregated_alike)
            .with_ignored_flag(skipped),
        trial("policies_are_judged_alike", policies::policies_are_judged_alike).with_ignored_flag(skipped),
        trial("owners_that_clients_send_are_answered_alike", owners_of_clients).with_ignored_flag(skipped),
        trial("objects_have_the_bytes_of_the_real_server", wire::objects_have_the_bytes_of_the_real_server)
            .with_ignored_flag(skipped),
        trial("documents_are_those_of_the_real_server", wire::documents_are_those_of_the_real_server)
            .with_ignored_flag(skipped),
        trial(
            "version_2_in_protobuf_is_that_of_the_real_server",
            wire::version_2_in_protobuf_is_that_of_the_real_server,
        )
        .with_ignored_flag(skipped),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Starts both API servers with the same fixtures, and runs `ask` with them.
fn with_both_servers(ask: impl AsyncFnOnce(&ApiServer, &ApiServer) -> anyhow::Result<()>) {
    let testbed = Testbed::without_docker();
    let plane = testbed.api_server();
    let files = plane.node(NODE, &[]);
    testbed.enter().expect("root may enter a namespace");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let clients = BTreeMap::from([
            ("admin", client_without_retries(&plane.admin()).await?),
            (NODE, client_without_retries(&files.kubeconfig).await?),
        ]);
        let real = ApiServer { name: "kube-apiserver", clients };
        let embedded = ControlPlane::open(config::config(testbed.dir())).await?;
        let clients = BTreeMap::from([
            ("admin", embedded.client(User::internal("admin"))),
            (NODE, embedded.client(User::node(NODE))),
        ]);
        let ours = ApiServer { name: "windlass", clients };
        let stop = CancellationToken::new();
        let custom_resources = tokio::spawn(embedded.clone().serve_custom_resources(stop.clone()));
        let aggregator = tokio::spawn(embedded.clone().aggregate(stop.clone()));
        for step in fixtures() {
            for side in [&real, &ours] {
                let answer = side.ask(&step).await?;
                anyhow::ensure!(
                    answer["code"] == 201 || answer["code"] == 409,
                    "{} {}: {answer}",
                    side.name,
                    step.name
                );
            }
        }
        ask(&real, &ours).await?;
        stop.cancel();
        custom_resources.await?;
        aggregator.await?;
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error:#}");
    }
}

/// The result of a comparison.
#[derive(Default)]
struct Report {
    /// The request whose answers are compared.
    request: String,
    asked: usize,
    /// Zero values that only the real server writes.
    empty: usize,
    seen: BTreeMap<usize, usize>,
    /// Differences that are known as they were recorded.
    pairs: BTreeSet<String>,
    /// Differences of responses, by the object's name and the pointer in it: watch events repeat them.
    answered: BTreeSet<(String, String, String)>,
    /// Number of repeated differences.
    again: usize,
    unknown: Vec<String>,
}

/// The name of the object in a response or event, and a pointer relative to the object.
fn place_in_object(response: &Value, around: &str, at: &str) -> Option<(String, String)> {
    let name = response.pointer(around)?.pointer("/metadata/name")?.as_str()?;
    Some((name.to_owned(), at.strip_prefix(around)?.to_owned()))
}

impl Report {
    fn compare(&mut self, name: &str, real: &Value, ours: &Value) {
        self.asked += 1;
        for difference in differences(&normalize(real), &normalize(ours)) {
            let written = difference.real.as_ref().is_some_and(is_zero);
            if written && difference.ours.as_ref().is_none_or(is_zero) {
                self.empty += 1;
                continue;
            }
            let values = || format!("{:?} {:?}", difference.real, difference.ours);
            if let Some((object, at)) = place_in_object(real, "/body", &difference.at) {
                self.answered.insert((object, at, values()));
            } else if let Some((object, at)) = place_in_object(real, "/object", &difference.at)
                && self.answered.contains(&(object, at, values()))
            {
                self.again += 1;
                continue;
            }
            self.add(name, &difference);
        }
    }

    fn add(&mut self, name: &str, difference: &Difference) {
        let fitting = |row: &KnownDifference| {
            matches_pattern(row.step, name)
                && matches_pattern(row.at, &difference.at)
                && row.in_all.fits(name, difference)
        };
        if let Some(row) = KNOWN_DIFFERENCES.iter().position(fitting) {
            *self.seen.entry(row).or_default() += 1;
            if matches!(KNOWN_DIFFERENCES[row].in_all, InAll::AsRecorded) {
                self.pairs.insert(pair(name, difference));
            }
            if std::env::var_os("DIFFERENTIAL_ALL").is_none() {
                return;
            }
        }
        let shown = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
        let Difference { at, real, ours } = difference;
        self.unknown.push(format!(
            "{name}: {at}\n    after:          {}\n    kube-apiserver: {}\n    windlass:       {}",
            self.request,
            shown(real),
            shown(ours)
        ));
    }

    /// Fails for known differences that did not occur.
    #[track_caller]
    fn assert_all_seen(&self, which: impl Fn(&KnownDifference) -> bool) {
        let unseen =
            (0..KNOWN_DIFFERENCES.len()).filter(|row| which(&KNOWN_DIFFERENCES[*row]) && !self.seen.contains_key(row));
        let fixed: Vec<&str> = unseen.map(|row| KNOWN_DIFFERENCES[row].step).collect();
        assert!(fixed.is_empty(), "these no longer differ; remove them from the table: {fixed:?}");
    }

    /// Compares with, or writes, what is recorded of the fixed scenario.
    #[track_caller]
    fn keep_pairs(&self) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/known_pairs.tsv");
        if is_recording() {
            let lines: String = self.pairs.iter().map(|line| format!("{line}\n")).collect();
            return std::fs::write(file, lines).expect("a file of the sources can be written");
        }
        let gone: Vec<&str> = PAIRS.lines().filter(|line| !self.pairs.contains(*line)).collect();
        assert!(gone.is_empty(), "these no longer differ so; record {file} again: {gone:#?}");
    }

    /// Prints the known differences with their reasons, and fails for unknown ones.
    #[track_caller]
    fn print(&self) {
        println!("{} answers and watches compared", self.asked);
        println!(
            "{:>4} × fields that only the real one writes, empty: clients read the same, and stores are smaller",
            self.empty
        );
        println!("{:>4} × in a watch what an answer about the same object differed in", self.again);
        for (row, count) in &self.seen {
            let KnownDifference { step, at, status, why, .. } = &KNOWN_DIFFERENCES[*row];
            println!("{count:>4} × {step} {at}: {status}: {why}");
        }
        assert!(self.unknown.is_empty(), "{} differences:\n{}", self.unknown.len(), self.unknown.join("\n"));
    }
}

/// The types that are watched while a sequence runs, and the request that ends the watch.
fn watches() -> Vec<(&'static str, String, Step)> {
    let last = |path: &str, body: Value| step("last", "admin", "POST", path, JSON, body);
    let mut all = vec![
        ("pods", within("pods"), last(&within("pods"), pod("last", json!({})))),
        ("nodes", "/api/v1/nodes".to_owned(), last("/api/v1/nodes", json!({"metadata": {"name": "last"}}))),
    ];
    for (number, (kind, path)) in random::others::paths().into_iter().enumerate() {
        let step = last(&path, random::others::object(number, "last"));
        all.push((kind, path, step));
    }
    all
}

/// Sends all steps to both servers, and compares responses and watch events of each step.
async fn run_steps(real: &ApiServer, ours: &ApiServer, steps: &[Step], report: &mut Report) -> anyhow::Result<()> {
    let sides = [real, ours];
    // By kind and side: the revision before the first step, and after each.
    let mut revisions: Vec<[Vec<u64>; 2]> = Vec::new();
    for (_, path, _) in watches() {
        revisions.push([vec![real.now(&path).await?], vec![ours.now(&path).await?]]);
    }
    for step in steps {
        report.request = format!("{} {} {} {}", step.method, step.path, step.kind, step.body);
        report.compare(&step.name, &real.ask(step).await?, &ours.ask(step).await?);
        for (all, (_, path, _)) in revisions.iter_mut().zip(watches()) {
            for (all, side) in all.iter_mut().zip(sides) {
                all.push(side.now(&path).await?);
            }
        }
    }
    for (all, (kind, path, last)) in revisions.iter().zip(watches()) {
        let mut by_side = Vec::new();
        for (side, all) in sides.into_iter().zip(all) {
            side.ask(&last).await?;
            let events = side.watched(&path, all[0], "last").await?;
            by_side.push(by_step(events, all)?);
            let gone = step(
                "last",
                "admin",
                "DELETE",
                &format!("{path}/last?gracePeriodSeconds=0&propagationPolicy=Background"),
                JSON,
                Value::Null,
            );
            side.ask(&gone).await?;
        }
        for (index, step) in steps.iter().enumerate() {
            let (real, ours) = (&by_side[0][index], &by_side[1][index]);
            let name = format!("{}: watch of {kind}", step.name);
            let line = |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["name"]);
            let lines = |events: &[Value]| json!(events.iter().map(line).collect::<Vec<_>>());
            report.compare(&name, &lines(real), &lines(ours));
            for (real, ours) in real.iter().zip(ours).filter(|(real, ours)| line(real) == line(ours)) {
                report.compare(&name, real, ours);
            }
        }
    }
    Ok(())
}

/// The events of each step, by the revisions before the first and after each.
fn by_step(events: Vec<Value>, revisions: &[u64]) -> anyhow::Result<Vec<Vec<Value>>> {
    let mut all = vec![Vec::new(); revisions.len()];
    for event in events {
        let at: u64 = event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?;
        let step = revisions.iter().skip(1).position(|after| at <= *after);
        all[step.unwrap_or(revisions.len() - 1)].push(event);
    }
    Ok(all)
}

fn fixed_scenario() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        run_steps(real, ours, &steps(), &mut report).await?;
        report.keep_pairs();
        report.print();
        report.assert_all_seen(is_of_scenario);
        Ok(())
    });
}

fn random_sequences() {
    let mut report = Report::default();
    for seed in seeds() {
        with_both_servers(async |real, ours| {
            for side in [real, ours] {
                let node = json!({"metadata": {"name": NODE}});
                let made = side.ask(&step("node", "admin", "POST", "/api/v1/nodes", JSON, node)).await?;
                anyhow::ensure!(made["code"] == 201, "{}: {made}", side.name);
            }
            let mut rng = Rng::new(seed);
            let steps: Vec<Step> = (0..RANDOM_STEPS).map(|number| random::next(&mut rng, number)).collect();
            let before = report.unknown.len();
            run_steps(real, ours, &steps, &mut report).await?;
            if report.unknown.len() > before {
                report.unknown.insert(before, format!("seed {seed}:"));
            }
            Ok(())
        });
    }
    report.print();
    if std::env::var_os(SEED).is_none() {
        report.assert_all_seen(is_random);
    }
}

fn random_applies() {
    let mut report = Report::default();
    for seed in seeds() {
        with_both_servers(async |real, ours| {
            let mut rng = Rng::new(seed);
            let steps: Vec<Step> = (0..RANDOM_STEPS).map(|number| random_applies::next(&mut rng, number)).collect();
            let before = report.unknown.len();
            run_steps(real, ours, &steps, &mut report).await?;
            if report.unknown.len() > before {
                report.unknown.insert(before, format!("seed {seed}:"));
            }
            Ok(())
        });
    }
    report.print();
}

/// Definitions of custom resources, and what is done to their objects in several versions.
fn definitions_and_their_objects() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        for (step, settles) in definitions::steps() {
            report.request = format!("{} {} {} {}", step.method, step.path, step.kind, step.body);
            let (real, ours) = match &settles {
                Settles::At(pointer, value) => {
                    tokio::try_join!(real.ask_until(&step, pointer, value), ours.ask_until(&step, pointer, value))?
                }
                Settles::Now | Settles::Later => (real.ask(&step).await?, ours.ask(&step).await?),
            };
            report.compare(&step.name, &real, &ours);
            if matches!(settles, Settles::Later) {
                tokio::time::sleep(definitions::PAUSE).await;
            }
        }
        report.print();
        report.assert_all_seen(|row| row.step.starts_with("definition: "));
        Ok(())
    });
}

fn owners_of_clients() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        for step in managed::steps() {
            report.request = format!("{} {} {} {}", step.method, step.path, step.kind, step.body);
            report.compare(&step.name, &real.ask(&step).await?, &ours.ask(&step).await?);
        }
        report.print();
        report.assert_all_seen(|row| row.step.starts_with("managed: "));
        Ok(())
    });
}

/// The requested seed, or the fixed ones.
fn seeds() -> Vec<u64> {
    match std::env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("a number in DIFFERENTIAL_SEED")],
        Err(_) => SEEDS.to_vec(),
    }
}
