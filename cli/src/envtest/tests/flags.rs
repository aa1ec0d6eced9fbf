use std::collections::BTreeSet;

use super::*;
use crate::envtest::{apiserver, etcd};

/// What `kube-apiserver --help` of 1.36 lists.
const UPSTREAM: usize = 173;

fn parse(table: &Table, line: &str) -> Result<Given, String> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match table.parse(&arguments)? {
        Asked::Run(given) => Ok(given),
        asked => Err(format!("{asked:?}")),
    }
}

#[test]
fn every_row_has_a_type_a_rule_and_a_reason() {
    for (table, text) in [
        (apiserver::table(), include_str!("../kube_apiserver_flags.tsv")),
        (etcd::table(), include_str!("../etcd_flags.tsv")),
    ] {
        let rows = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rows, table.flags.len(), "a row of {} cannot be read, or is there twice", table.program);
        for flag in table.flags.values() {
            assert!(flag.rule == Rule::Acts || !flag.why.is_empty(), "{} has no reason", flag.name);
            // A program that is given its own defaults starts.
            if !flag.default.is_empty() {
                table.accept(flag, flag.default).unwrap_or_else(|why| panic!("{}: {why}", flag.name));
            }
        }
    }
    assert_eq!(apiserver::table().flags.len(), UPSTREAM);
}

/// What envtest of each release writes, and more that its users add.
#[test]
fn lines_of_envtest_are_accepted() {
    for line in include_str!("envtest_lines.tsv").lines().filter(|line| !line.starts_with('#')) {
        let [release, program, arguments] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let table = if program == "etcd" { etcd::table() } else { apiserver::table() };
        let given = parse(&table, arguments).unwrap_or_else(|why| panic!("{program} of {release}: {why}"));
        assert_eq!(given.0.values().map(Vec::len).sum::<usize>(), arguments.split_whitespace().count(), "{line}");
    }
}

#[test]
fn values_are_read_as_go_reads_them() {
    let table = apiserver::table();
    let given = parse(
        &table,
        "--secure-port 1 --secure-port=2 --allow-privileged --etcd_servers=a,b --etcd-servers c -v=4 --tls-cert-file=",
    )
    .unwrap();
    assert_eq!((given.text("secure-port"), given.text("v"), given.text("tls-cert-file")), (Some("2"), Some("4"), None));
    assert!(given.is_true("allow-privileged") && !given.is_true("profiling"));
    assert_eq!(given.list("etcd-servers"), ["a", "b", "c"]);
    assert_eq!(parse(&table, "-v5").unwrap().text("v"), Some("5"));
    let given = parse(&etcd::table(), "-data-dir=/a --unsafe-no-fsync").unwrap();
    assert!(given.text("data-dir") == Some("/a") && given.is_true("unsafe-no-fsync"));
}

#[test]
fn what_is_wrong_is_said_in_upstreams_words() {
    let table = apiserver::table();
    for (line, error) in [
        ("--nonsense", "unknown flag: --nonsense"),
        ("--insecure-port=0", "unknown flag: --insecure-port"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("--etcd-servers", "flag needs an argument: --etcd-servers"),
        ("extra more", "\"kube-apiserver\" does not take any arguments, got [\"extra\" \"more\"]"),
        (
            "--secure-port=abc",
            "invalid argument \"abc\" for \"--secure-port\" flag: strconv.ParseInt: parsing \"abc\": invalid syntax",
        ),
        (
            "--profiling=yes",
            "invalid argument \"yes\" for \"--profiling\" flag: strconv.ParseBool: parsing \"yes\": invalid syntax",
        ),
        ("--event-ttl=1", "invalid argument \"1\" for \"--event-ttl\" flag: time: invalid duration \"1\""),
        ("--bind-address=x", "invalid argument \"x\" for \"--bind-address\" flag: failed to parse IP: \"x\""),
    ] {
        assert_eq!(parse(&table, line).unwrap_err(), error);
    }
    let etcd = etcd::table();
    assert_eq!(parse(&etcd, "--nonsense").unwrap_err(), "flag provided but not defined: -nonsense");
    assert_eq!(parse(&etcd, "--name").unwrap_err(), "flag needs an argument: -name");
}

/// What would restrict, and is not done, is never accepted in silence.
#[test]
fn what_is_not_done_is_refused() {
    let table = apiserver::table();
    for line in [
        "--anonymous-auth=false",
        "--oidc-issuer-url=https://a",
        "--authorization-config=a",
        "--authorization-webhook-config-file=a",
        "--audit-webhook-config-file=a",
        "--audit-log-mode=blocking-strict",
        "--encryption-provider-config=a",
        "--max-requests-inflight=10",
        "--tls-min-version=VersionTLS13",
        "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
        "--request-timeout=10s",
        "--event-ttl=1m",
        "--requestheader-client-ca-file=a",
        "--admission-control=AlwaysDeny",
    ] {
        let error = parse(&table, line).unwrap_err();
        assert!(error.starts_with(line) && error.contains(" is not possible with windlass: "), "{error}");
    }
    for line in ["--event-ttl=60m", "--max-requests-inflight=0", "--max-requests-inflight=800", "--anonymous-auth=T"] {
        let _ = parse(&table, line).unwrap_or_else(|why| panic!("{why}"));
    }
    for line in ["--client-cert-auth", "--cert-file=a", "--quota-backend-bytes=1000", "--config-file=a"] {
        assert!(parse(&etcd::table(), line).unwrap_err().contains(" is not possible with windlass: "), "{line}");
    }
}

/// envtest looks for flags at the beginnings of the lines that `--help` prints.
#[test]
fn the_help_has_a_line_for_each_flag() {
    for table in [apiserver::table(), etcd::table()] {
        let help = table.help();
        let lines = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
        let named: BTreeSet<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(named, table.flags.keys().copied().collect());
        assert!(!named.contains("insecure-port"));
        assert!(matches!(table.parse(&["--help".to_owned()]), Ok(Asked::Help)));
    }
    assert!(etcd::table().help().contains("--unsafe-no-fsync"));
}
