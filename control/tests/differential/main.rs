//! The same questions to a real kube-apiserver and to ours: answers and watch events agree, or the difference stands in
//! [`accepted::TABLE`] with its reason. No controllers run on either side, so that nothing happens between two questions.
//!
//! The real one is that of the folder that `KUBEBUILDER_ASSETS` names; where that is not set the two comparisons are told as
//! ignored. Sequences of chance begin with a fixed set of seeds; `DIFFERENTIAL_SEED=7` asks the one of that seed instead.
//! `DIFFERENTIAL_ALL` tells every difference.

#![allow(clippy::print_stdout, reason = "a test says what it saw")]

mod accepted;
#[path = "../config/mod.rs"]
mod config;
mod normal;
mod random;
mod side;
mod written;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use windlass_control::{ControlPlane, api::UserInfo};
use windlass_tests::{World, bench, cluster::assets};

use accepted::{TABLE, of_chance};
use normal::{Difference, differences, fits, normal, says_nothing};
use random::Dice;
use side::{JSON, Side, Step};
use written::{NODE, ground, pod, step, steps, within};

/// The variable that names another beginning of a sequence of chance than [`SEEDS`].
const SEED: &str = "DIFFERENTIAL_SEED";
/// With what sequences of chance begin, always.
const SEEDS: [u64; 4] = [1, 7, 23, 42];
const RANDOM_STEPS: usize = 250;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let skipped = assets().is_none();
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("normal::what_means_nothing_is_taken_away", normal::what_means_nothing_is_taken_away),
        trial("normal::differences_have_their_place", normal::differences_have_their_place),
        trial("normal::patterns_stand_for_what_they_say", normal::patterns_stand_for_what_they_say),
        trial("a_written_sequence_is_answered_alike", written_sequence).with_ignored_flag(skipped),
        trial("sequences_of_chance_are_answered_alike", sequences_of_chance).with_ignored_flag(skipped),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Both API servers with the same beginning, and `ask` with them.
fn with_both(ask: impl AsyncFnOnce(&Side, &Side) -> anyhow::Result<()>) {
    let world = World::without_docker();
    let plane = world.api_server();
    let files = plane.node(NODE, &[]);
    bench::enter(&world).expect("root may enter a namespace");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let clients = BTreeMap::from([
            ("admin", bench::client(&plane.admin()).await?),
            (NODE, bench::client(&files.kubeconfig).await?),
        ]);
        let real = Side { name: "kube-apiserver", clients };
        let embedded = ControlPlane::open(config::config(world.dir())).await?;
        let clients = BTreeMap::from([
            ("admin", embedded.client(UserInfo::internal("admin"))),
            (NODE, embedded.client(UserInfo::node(NODE))),
        ]);
        let ours = Side { name: "windlass", clients };
        for step in ground() {
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
        ask(&real, &ours).await
    });
    if let Err(error) = done {
        panic!("{error:#}");
    }
}

/// What was asked, what differed, and which of that is accepted.
#[derive(Default)]
struct Report {
    asked: usize,
    /// Fields that only the real one writes, empty.
    empty: usize,
    seen: BTreeMap<usize, usize>,
    /// What answers differed in, by the object's name and the place in it: watches show the same again.
    answered: BTreeSet<(String, String, String)>,
    /// How often they did.
    again: usize,
    unknown: Vec<String>,
}

/// The name of the object that an answer or event carries, and a place in it without what stands around the object.
fn place_in_object(told: &Value, around: &str, at: &str) -> Option<(String, String)> {
    let name = told.pointer(around)?.pointer("/metadata/name")?.as_str()?;
    Some((name.to_owned(), at.strip_prefix(around)?.to_owned()))
}

impl Report {
    fn compare(&mut self, name: &str, real: &Value, ours: &Value) {
        self.asked += 1;
        for difference in differences(&normal(real), &normal(ours)) {
            let written = difference.real.as_ref().is_some_and(says_nothing);
            if written && difference.ours.as_ref().is_none_or(says_nothing) {
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
        let fitting = |row: &accepted::Row| fits(row.step, name) && fits(row.at, &difference.at);
        if let Some(row) = TABLE.iter().position(fitting) {
            *self.seen.entry(row).or_default() += 1;
            if std::env::var_os("DIFFERENTIAL_ALL").is_none() {
                return;
            }
        }
        let shown = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
        let Difference { at, real, ours } = difference;
        self.unknown.push(format!(
            "{name}: {at}\n    kube-apiserver: {}\n    windlass:       {}",
            shown(real),
            shown(ours)
        ));
    }

    /// Fails for rows of the table that nothing has fitted.
    #[track_caller]
    fn has_seen(&self, which: impl Fn(&accepted::Row) -> bool) {
        let unseen = (0..TABLE.len()).filter(|row| which(&TABLE[*row]) && !self.seen.contains_key(row));
        let mended: Vec<&str> = unseen.map(|row| TABLE[row].step).collect();
        assert!(mended.is_empty(), "these no longer differ and go from the table: {mended:?}");
    }

    /// Tells what is accepted and why, and fails for all else.
    #[track_caller]
    fn told(&self) {
        println!("{} answers and watches compared", self.asked);
        println!(
            "{:>4} × fields that only the real one writes, empty: clients read the same, and stores are smaller",
            self.empty
        );
        println!("{:>4} × in a watch what an answer about the same object differed in", self.again);
        for (row, count) in &self.seen {
            let accepted::Row { step, at, standing, why } = &TABLE[*row];
            println!("{count:>4} × {step} {at}: {standing}: {why}");
        }
        assert!(self.unknown.is_empty(), "{} differences:\n{}", self.unknown.len(), self.unknown.join("\n"));
    }
}

/// The types that are watched while a sequence runs, with what ends the watch.
fn watches() -> [(&'static str, String, Step); 2] {
    let last = |path: &str, body: Value| step("last", "admin", "POST", path, JSON, body);
    [
        ("pods", within("pods"), last(&within("pods"), pod("last", json!({})))),
        ("nodes", "/api/v1/nodes".to_owned(), last("/api/v1/nodes", json!({"metadata": {"name": "last"}}))),
    ]
}

/// Asks both all of it, and compares the answers and what was told of each step.
async fn asked(real: &Side, ours: &Side, steps: &[Step], report: &mut Report) -> anyhow::Result<()> {
    let sides = [real, ours];
    // By kind and side: the revision before the first step, and after each.
    let mut revisions: Vec<[Vec<u64>; 2]> = Vec::new();
    for (_, path, _) in watches() {
        revisions.push([vec![real.now(&path).await?], vec![ours.now(&path).await?]]);
    }
    for step in steps {
        report.compare(&step.name, &real.ask(step).await?, &ours.ask(step).await?);
        for (all, (_, path, _)) in revisions.iter_mut().zip(watches()) {
            for (all, side) in all.iter_mut().zip(sides) {
                all.push(side.now(&path).await?);
            }
        }
    }
    for (all, (kind, path, last)) in revisions.iter().zip(watches()) {
        let mut told = Vec::new();
        for (side, all) in sides.into_iter().zip(all) {
            side.ask(&last).await?;
            let events = side.watched(&path, all[0], "last").await?;
            told.push(by_step(events, all)?);
            let gone = step("last", "admin", "DELETE", &format!("{path}/last?gracePeriodSeconds=0"), JSON, Value::Null);
            side.ask(&gone).await?;
        }
        for (index, step) in steps.iter().enumerate() {
            let (real, ours) = (&told[0][index], &told[1][index]);
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

/// What was told of each step, by the revisions before the first and after each.
fn by_step(events: Vec<Value>, revisions: &[u64]) -> anyhow::Result<Vec<Vec<Value>>> {
    let mut all = vec![Vec::new(); revisions.len()];
    for event in events {
        let at: u64 = event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?;
        let step = revisions.iter().skip(1).position(|after| at <= *after);
        all[step.unwrap_or(revisions.len() - 1)].push(event);
    }
    Ok(all)
}

fn written_sequence() {
    with_both(async |real, ours| {
        let mut report = Report::default();
        asked(real, ours, &steps(), &mut report).await?;
        report.told();
        report.has_seen(|row| !of_chance(row));
        Ok(())
    });
}

fn sequences_of_chance() {
    let mut report = Report::default();
    for seed in seeds() {
        with_both(async |real, ours| {
            for side in [real, ours] {
                let node = json!({"metadata": {"name": NODE}});
                let made = side.ask(&step("node", "admin", "POST", "/api/v1/nodes", JSON, node)).await?;
                anyhow::ensure!(made["code"] == 201, "{}: {made}", side.name);
            }
            let mut dice = Dice::new(seed);
            let steps: Vec<Step> = (0..RANDOM_STEPS).map(|number| random::next(&mut dice, number)).collect();
            let before = report.unknown.len();
            asked(real, ours, &steps, &mut report).await?;
            if report.unknown.len() > before {
                report.unknown.insert(before, format!("seed {seed}:"));
            }
            Ok(())
        });
    }
    report.told();
    if std::env::var_os(SEED).is_none() {
        report.has_seen(of_chance);
    }
}

/// The one that is asked for, or those that are asked always.
fn seeds() -> Vec<u64> {
    match std::env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("a number in DIFFERENTIAL_SEED")],
        Err(_) => SEEDS.to_vec(),
    }
}
