//! Every target over its corpus, and over what a few changes make of it: so often that a target that is broken is seen at once.
//! What needs millions of inputs is for `make fuzz`. `TEST_SEED` repeats a run.

use windlass_fuzz_targets::{TARGETS, corpus, run};
use windlass_tests::{Dice, seed};

/// Changed inputs of each target. Those that make keys, decode every type or write files cost more.
const INPUTS: usize = 2000;
const DEAR: [(&str, usize); 14] = [
    ("applies", 600),
    ("audit_policy", 600),
    ("bodies", 200),
    ("credential_provider", 1000),
    ("dns_packets", 1000),
    ("kernel_state", 200),
    ("log_reader", 200),
    ("manifests", 150),
    ("owners", 1000),
    ("patches", 1000),
    ("schemas", 1000),
    ("store_log", 80),
    ("subjects", 150),
    ("volume_tree", 40),
];

/// Changes, removes or duplicates a few bytes, or takes them from another input.
fn change(dice: &mut Dice, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=dice.index(4) {
        let at = dice.index(bytes.len() + 1);
        let length = dice.index(16).min(bytes.len() - at);
        match dice.index(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.index(8),
            1 if at < bytes.len() => bytes[at] = [0, 0xff, b'{', b'"', b' ', b'\n', b'-', b'9'][dice.index(8)],
            2 => drop(bytes.drain(at..at + length)),
            3 => {
                let again = bytes[at..at + length].to_vec();
                bytes.splice(at..at, again);
            }
            4 => bytes.truncate(at),
            _ => {
                let from = dice.index(other.len() + 1);
                let until = (from + dice.index(40)).min(other.len());
                bytes.splice(at..at, other[from..until].iter().copied());
            }
        }
    }
}

fn over_its_corpus(name: &str) {
    let seeds = corpus(name);
    assert!(!seeds.is_empty(), "{name} has no corpus: put an input that it accepts into fuzz-targets/corpus/{name}");
    let mut dice = Dice::of(seed(), name);
    for seed in &seeds {
        run(name, seed);
    }
    let inputs = DEAR.iter().find(|(dear, _)| *dear == name).map_or(INPUTS, |(_, inputs)| *inputs);
    for _ in 0..inputs {
        let mut bytes = seeds[dice.index(seeds.len())].clone();
        let other = &seeds[dice.index(seeds.len())];
        change(&mut dice, &mut bytes, other);
        let complaint = std::panic::catch_unwind(|| run(name, &bytes)).is_err();
        assert!(!complaint, "{name} panics at {:?}", String::from_utf8_lossy(&bytes));
    }
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            over_its_corpus(stringify!($name));
        })*

        #[test]
        fn every_target_is_here() {
            let here = [$(stringify!($name)),*];
            let all = TARGETS.map(|(name, _)| name);
            assert_eq!(here[..], all[..]);
        }
    };
}

targets!(
    applies,
    audit_policy,
    bodies,
    cel,
    channel_message,
    cni_answer,
    cni_configuration,
    credential_provider,
    cri_request,
    der,
    dns_packets,
    kernel_state,
    log_entry,
    log_reader,
    manifests,
    owners,
    patches,
    printer_columns,
    pull_secret,
    resolv_conf,
    schemas,
    selectors,
    spdy_connection,
    spdy_headers,
    store_log,
    subjects,
    token,
    volume_tree,
);

/// libFuzzer has a program for each target, and each corpus belongs to a target.
#[test]
fn every_target_is_fuzzed() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(here.join("../fuzz/Cargo.toml")).expect("the crate of the fuzzers");
    let programs: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).skip(1).collect();
    assert_eq!(programs, TARGETS.map(|(name, _)| name));
    for entry in std::fs::read_dir(here.join("corpus")).expect("the corpus").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(programs.contains(&name.as_str()), "fuzz-targets/corpus/{name} is of no target");
    }
}
