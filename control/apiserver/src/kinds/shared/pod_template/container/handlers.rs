//! What is run or asked in a container: probes and hooks. Pure.

use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, PORT},
        names,
    },
    kinds::shared::field::{Field, none_negative},
};

const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";

/// Validates the hooks and probes of a container that may have them.
pub(super) fn validate(container: &Field<'_>, grace: Option<i64>, errors: &mut Errors) {
    let hooks = container.at("lifecycle");
    for hook in ["postStart", "preStop"].map(|hook| hooks.at(hook)).iter().filter(|hook| hook.is_set()) {
        handler(hook, &["exec", "httpGet", "tcpSocket", "sleep"], grace, errors);
    }
    stop_signal(&hooks.at("stopSignal"), errors);
    for (kind, ends) in [("livenessProbe", true), ("readinessProbe", false), ("startupProbe", true)] {
        let of_kind = container.at(kind);
        if of_kind.is_set() {
            probe(&of_kind, ends, errors);
        }
    }
}

/// Refuses a signal that Linux does not have. Upstream drops the field, whose gate is off.
fn stop_signal(signal: &Field<'_>, errors: &mut Errors) {
    const PLAIN: [&str; 35] = [
        "SIGABRT",
        "SIGALRM",
        "SIGBUS",
        "SIGCHLD",
        "SIGCLD",
        "SIGCONT",
        "SIGFPE",
        "SIGHUP",
        "SIGILL",
        "SIGINT",
        "SIGIO",
        "SIGIOT",
        "SIGKILL",
        "SIGPIPE",
        "SIGPOLL",
        "SIGPROF",
        "SIGPWR",
        "SIGQUIT",
        "SIGSEGV",
        "SIGSTKFLT",
        "SIGSTOP",
        "SIGSYS",
        "SIGTERM",
        "SIGTRAP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGUSR1",
        "SIGUSR2",
        "SIGVTALRM",
        "SIGWINCH",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGRTMIN",
    ];
    if !signal.is_set() {
        return;
    }
    let real_time = (1..=15).map(|n| format!("SIGRTMIN+{n}")).chain((1..=14).map(|n| format!("SIGRTMAX-{n}")));
    let plain = PLAIN.into_iter().chain(["SIGRTMAX"]).map(str::to_owned);
    let mut all: Vec<String> = plain.chain(real_time).collect();
    all.sort_unstable();
    if !all.iter().any(|known| known == signal.text()) {
        errors.not_supported(&signal.path, signal.value, &all);
    }
}

/// Validates a probe; `ends` says that its failure ends the container.
fn probe(probe: &Field<'_>, ends: bool, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], None, errors);
    let counts = ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    none_negative(probe, &counts, errors);
    let (grace, successes) = (probe.at("terminationGracePeriodSeconds"), probe.at("successThreshold"));
    if grace.number().is_some_and(|seconds| seconds <= 0) {
        grace.invalid("must be greater than 0", errors);
    }
    if ends && successes.number().is_some_and(|count| count != 1) {
        successes.invalid("must be 1", errors);
    }
    if !ends && grace.is_set() {
        grace.invalid("must not be set for readinessProbes", errors);
    }
}

/// Validates what is done, which is one of `kinds`.
fn handler(of: &Field<'_>, kinds: &[&'static str], grace: Option<i64>, errors: &mut Errors) {
    let all: Vec<_> = kinds.iter().map(|kind| of.at(kind)).filter(Field::is_set).collect();
    let Some((first, others)) = all.split_first() else {
        return of.required("must specify a handler type", errors);
    };
    match first.path.name() {
        "exec" if first.at("command").is_empty() => first.at("command").required("", errors),
        "httpGet" => http_get(first, errors),
        "tcpSocket" | "grpc" => port(&first.at("port"), errors),
        "sleep" => {
            let seconds = first.at("seconds").number().unwrap_or(0);
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                first.invalid_as(&seconds.to_string(), &why, errors);
            }
        }
        _ => {}
    }
    others.iter().for_each(|other| other.forbidden("may not specify more than 1 handler type", errors));
}

fn http_get(get: &Field<'_>, errors: &mut Errors) {
    if get.at("path").is_empty() {
        get.at("path").required("", errors);
    }
    port(&get.at("port"), errors);
    get.at("scheme").one_of(&["HTTP", "HTTPS"], errors);
    for name in get.at("httpHeaders").items().map(|header| header.at("name")) {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if name.is_empty() || !name.text().bytes().all(fine) {
            // Upstream reports the path of the list instead of its item's.
            errors.invalid_text(get.at("httpHeaders").path, name.text(), HEADER);
        }
    }
}

/// A port by number or by name; one that is missing is 0.
fn port(port: &Field<'_>, errors: &mut Errors) {
    if let Some(name) = port.value.as_str() {
        let problems = names::port_name_problems(name);
        problems.iter().for_each(|why| port.invalid(why, errors));
    } else {
        let number = port.number().unwrap_or(0);
        if !(1..=65535).contains(&number) {
            port.invalid_as(&number.to_string(), PORT, errors);
        }
    }
}
