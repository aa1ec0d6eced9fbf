//! Upstream's conformance tests, all of them: groups side by side, then those that must run alone, then those that need a second node,
//! which is a hollow one. The suite's own program runs one test at a time, so that each group is a process of its own.

#![allow(clippy::print_stdout, reason = "a run of an hour says how far it is, and at its end what failed")]

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use regex::Regex;
use windlass_tests::HollowNodes;

use crate::{judge::Node, suite};

/// Asks for the run, and names the folder of its report.
pub(crate) const REPORT: &str = "CONFORMANCE_REPORT";
/// How many groups run side by side.
const PROCESSES: &str = "CONFORMANCE_PROCESSES";
/// Names groups, separated by commas; all run without it.
const ONLY: &str = "CONFORMANCE_GROUPS";

/// A part of the suite.
struct Group {
    name: &'static str,
    /// By labels: all, or those that must run alone.
    labels: &'static str,
    /// By names.
    focus: &'static str,
    skip: &'static str,
}

const fn side_by_side(name: &'static str, focus: &'static str, skip: &'static str) -> Group {
    Group { name, labels: "Conformance && !Serial", focus, skip }
}

/// Tests of two nodes: on one they fail.
const TWO_NODES: &str = "at least two untainted nodes|rollback without unnecessary restarts";

const NODE_PODS: &str = r"\[sig-node\] (Pods|Probing|Container |Ephemeral|InitContainer|PreStop)";
const API_EXTENSIONS: &str = r"\[sig-api-machinery\] (AdmissionWebhook|Aggregator|CustomResource)";
const STORAGE_FILES: &str = r"\[sig-storage\] (Projected|Downward)";

/// Each is about as long as the others; the longest begin.
const GROUPS: [Group; 12] = [
    side_by_side("stateful-sets", r"\[sig-apps\] StatefulSet", ""),
    side_by_side("services", r"\[sig-network\] Service", ""),
    side_by_side("pods", NODE_PODS, ""),
    side_by_side("jobs", r"\[sig-apps\] (Job|CronJob)", ""),
    side_by_side("apps", r"\[sig-apps\]", r"\[sig-apps\] (StatefulSet|Job|CronJob)"),
    side_by_side("network", r"\[sig-network\]", r"\[sig-network\] Service"),
    side_by_side("kubectl", r"\[sig-cli\]", ""),
    side_by_side("extensions", API_EXTENSIONS, ""),
    side_by_side("node", r"\[sig-node\]", NODE_PODS),
    side_by_side("projected", STORAGE_FILES, ""),
    side_by_side("storage", r"\[sig-storage\]", STORAGE_FILES),
    side_by_side("api", r"\[sig-(api-machinery|auth|instrumentation|scheduling|architecture)\]", API_EXTENSIONS),
];
const ALONE: Group = Group { name: "serial", labels: "Conformance && Serial", focus: "", skip: "" };
const WITH_SECOND_NODE: Group = Group { name: "two-nodes", labels: "Conformance", focus: TWO_NODES, skip: "" };

/// All of the suite passes. What it wrote is in the folder of the report: `e2e.log` and `junit_01.xml`, as a certification wants them.
pub(crate) fn passes(node: &Node) {
    let report = PathBuf::from(std::env::var_os(REPORT).expect("the test is ignored without it"));
    fs::create_dir_all(&report).expect("the folder of the report");
    let only = std::env::var(ONLY).ok();
    let only: Option<Vec<&str>> = only.as_deref().map(|names| names.split(',').collect());
    for name in only.iter().flatten() {
        let is_one = |group: &Group| group.name == *name;
        assert!(GROUPS.iter().chain([&ALONE, &WITH_SECOND_NODE]).any(is_one), "{ONLY} names {name}, which is no group");
    }
    let asked = |group: &&Group| only.as_ref().is_none_or(|only| only.contains(&group.name));
    let began = Instant::now();
    let groups: Vec<&Group> = GROUPS.iter().filter(asked).collect();
    let (next, groups) = (AtomicUsize::new(0), groups.as_slice());
    thread::scope(|scope| {
        for _ in 0..processes() {
            let _ = scope.spawn(|| {
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(node, group, &report);
                }
            });
        }
    });
    let mut ran: Vec<&Group> = groups.to_vec();
    if asked(&&ALONE) {
        run(node, &ALONE, &report);
        ran.push(&ALONE);
    }
    if asked(&&WITH_SECOND_NODE) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let kubeconfig = node.testbed.windlass().kubeconfig();
        let second = runtime.block_on(HollowNodes::start(&kubeconfig, 1)).expect("a hollow node");
        run(node, &WITH_SECOND_NODE, &report);
        ran.push(&WITH_SECOND_NODE);
        drop(second);
    }
    let by_group: Vec<Vec<Case>> = ran.iter().map(|group| cases(&report.join(group.name))).collect();
    // A group that was ended has no report, and would be missing from the totals.
    let without: Vec<&str> =
        ran.iter().zip(&by_group).filter(|(_, cases)| cases.is_empty()).map(|(group, _)| group.name).collect();
    let cases: Vec<Case> = by_group.into_iter().flatten().collect();
    let summary = summary(&cases, began.elapsed().as_secs());
    write_report(&report, &ran, &cases, &summary);
    println!("{summary}\nThe report is in {}", report.display());
    assert!(without.is_empty(), "no test was reported by {}", without.join(", "));
    assert!(cases.iter().all(|case| case.failure.is_none()), "{summary}");
}

fn processes() -> usize {
    match std::env::var(PROCESSES) {
        Ok(number) => number.parse().unwrap_or_else(|_| panic!("{PROCESSES} is {number}, which is no number")),
        // Tests wait for most of their time.
        Err(_) => 2 * thread::available_parallelism().map_or(2, usize::from),
    }
}

/// Runs a group; its output and report are in a folder of its name.
fn run(node: &Node, group: &Group, report: &Path) {
    let (folder, began) = (report.join(group.name), Instant::now());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let mut command = suite::command(node, suite::PROTOBUF);
    command.arg(format!("--ginkgo.label-filter={}", group.labels)).arg(format!("--report-dir={}", folder.display()));
    if !group.focus.is_empty() {
        command.arg(format!("--ginkgo.focus={}", group.focus));
    }
    let skip = if group.name == WITH_SECOND_NODE.name { "" } else { TWO_NODES };
    for skip in [skip, group.skip].into_iter().filter(|skip| !skip.is_empty()) {
        command.arg(format!("--ginkgo.skip={skip}"));
    }
    let log = fs::File::create(folder.join("e2e.log")).expect("a log");
    let both = log.try_clone().expect("a log");
    let ended = command.stdout(log).stderr(both).status().expect("the suite starts");
    println!("{}: {ended} after {} s", group.name, began.elapsed().as_secs());
}

/// A test that ran.
struct Case {
    name: String,
    /// Its element in the report.
    element: String,
    /// What it said when it failed.
    failure: Option<String>,
}

/// The tests that ran, as a group's report has them.
fn cases(folder: &Path) -> Vec<Case> {
    let report = fs::read_to_string(folder.join("junit_01.xml")).unwrap_or_default();
    let element =
        Regex::new(r#"(?s)<testcase name="([^"]*)"[^>]*? status="([^"]*)".*?</testcase>"#).expect("a pattern");
    let named = element.captures_iter(&report).filter(|found| found[1].starts_with("[It]") && &found[2] != "skipped");
    named
        .map(|found| Case {
            name: plain(&found[1]),
            element: found[0].to_owned(),
            failure: (&found[2] != "passed").then(|| plain(&found[0])),
        })
        .collect()
}

/// Text of XML without its escapes.
fn plain(text: &str) -> String {
    let escapes = [("&#xA;", "\n"), ("&#34;", "\""), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    escapes.iter().fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Why a test failed: what this machine or the folder lacks, or the first line of what it said.
fn cause(failure: &str) -> String {
    let image = Regex::new(r#"(?:Failed to pull image|Back-off pulling image) "([^"]+)""#).expect("a pattern");
    if let Some(found) = image.captures(failure) {
        return format!("the image {} is not in the folder", &found[1]);
    }
    if failure.contains("operation not permitted")
        || failure.contains("privileged") && failure.contains("error mounting")
    {
        return "this machine has no privileged containers".to_owned();
    }
    let message = failure.split("<failure message=\"").nth(1).unwrap_or(failure);
    message.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Totals, and the failures with their causes.
fn summary(cases: &[Case], seconds: u64) -> String {
    let failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let passed = cases.len() - failed;
    let mut text =
        format!("Conformance: {passed} passed, {failed} failed, in {}:{:02} minutes\n", seconds / 60, seconds % 60);
    for case in cases {
        if let Some(failure) = &case.failure {
            let _ = writeln!(text, "  {}\n    {}", case.name.trim_start_matches("[It] "), cause(failure));
        }
    }
    text
}

/// Joins the reports of all groups.
fn write_report(report: &Path, groups: &[&Group], cases: &[Case], summary: &str) {
    let failures = cases.iter().filter(|case| case.failure.is_some()).count();
    let counts = format!("tests=\"{}\" errors=\"0\" failures=\"{failures}\"", cases.len());
    let elements: String = cases.iter().map(|case| format!("{}\n", case.element)).collect();
    let junit = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n<testsuite name=\"Kubernetes e2e suite\" {counts}>\n{elements}</testsuite>\n</testsuites>\n"
    );
    fs::write(report.join("junit_01.xml"), junit).expect("the report");
    let mut log = String::new();
    for group in groups {
        log.push_str(&fs::read_to_string(report.join(group.name).join("e2e.log")).unwrap_or_default());
    }
    log.push_str(summary);
    fs::write(report.join("e2e.log"), log).expect("the log");
}
