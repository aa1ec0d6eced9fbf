//! `/logs/?query=`: logs of services of the node, from journald or, for services that do not log there, from files
//! below the log directory (KEP-2258, `kubelet_server_journal.go`). Parsing the query is pure; the journal is read by
//! `journalctl`, with request texts as single arguments, never by a shell.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::Instant,
};
use tokio_util::io::ReaderStream;

use super::{
    files::{Entry, open_entry},
    refuse,
};

/// Timeout of a query; upstream's.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum of `tailLines`; upstream's.
const MAX_TAIL_LINES: i64 = 100_000;
/// Maximum length of a pattern.
const MAX_PATTERN_LEN: usize = 1024;
/// Limit of what is read of the list of units.
const MAX_UNIT_LIST_BYTES: u64 = 4 << 20;

/// A parsed query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    services: Vec<String>,
    /// Paths below the log directory.
    files: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail_lines: Option<i64>,
    pattern: String,
    /// 0 for the current boot, -1 for the previous one.
    boot: Option<i64>,
}

impl NodeLogQuery {
    /// Parses the parameters of a request; `None` if none of them belongs to a query. Pure.
    ///
    /// # Errors
    /// All violations of upstream's rules, in one text.
    pub(super) fn parse(parameters: &[(String, String)]) -> Option<Result<Self, String>> {
        let (mut query, mut wrong, mut any) = (Self::default(), Vec::new(), false);
        for (name, value) in parameters {
            let time = |wrong: &mut Vec<String>| match value.parse() {
                Ok(time) => Some(time),
                Err(_) => {
                    wrong.push(format!("{name}: Invalid value: {value:?}: invalid time format"));
                    None
                }
            };
            let number = |wrong: &mut Vec<String>| match value.parse::<i64>() {
                Ok(number) => Some(number),
                Err(_) => {
                    wrong.push(format!("{name}: Invalid value: {value:?}: must be an integer"));
                    None
                }
            };
            match name.as_str() {
                "query" if value.contains(['/', '\\']) => query.files.push(value.clone()),
                "query" if value.is_empty() => {}
                "query" => query.services.push(value.clone()),
                "sinceTime" => query.since = time(&mut wrong),
                "untilTime" => query.until = time(&mut wrong),
                "tailLines" => query.tail_lines = number(&mut wrong),
                "boot" => query.boot = number(&mut wrong),
                "pattern" => query.pattern.clone_from(value),
                _ => continue,
            }
            any = true;
        }
        if !any {
            return None;
        }
        wrong.extend(query.problems());
        Some(if wrong.is_empty() { Ok(query) } else { Err(wrong.join(", ")) })
    }

    fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let invalid =
            |name: &str, value: &dyn std::fmt::Debug, why: &str| format!("{name}: Invalid value: {value:?}: {why}");
        let plain = Self { services: Vec::new(), files: self.files.clone(), ..Self::default() };
        match (self.services.as_slice(), self.files.as_slice()) {
            ([], []) => wrong.push("query: Required value: cannot be empty with options".to_owned()),
            ([], [_]) if *self != plain => {
                wrong.push(invalid("query", &self.files, "cannot specify file with options"));
            }
            (_, []) | ([], [_]) => {}
            ([], files) => wrong.push(invalid("query", &files, "cannot specify more than one file")),
            (services, files) => {
                wrong.push(invalid("query", &[services, files].concat(), "cannot specify a file and service"));
            }
        }
        for service in &self.services {
            let allowed = |c: char| c.is_ascii_alphanumeric() || ":_.@-".contains(c);
            if service.starts_with(['-', '.']) || !service.chars().all(allowed) {
                wrong.push(invalid("query", service, "service name is invalid"));
            }
        }
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            wrong.push(invalid("untilTime", &until.to_string(), "must be after `sinceTime`"));
        }
        if let Some(lines) = self.tail_lines.filter(|lines| !(0..=MAX_TAIL_LINES).contains(lines)) {
            wrong.push(invalid("tailLines", &lines, &format!("must be between 0 and {MAX_TAIL_LINES}, inclusive")));
        }
        if let Some(boot) = self.boot.filter(|boot| !(-100..=0).contains(boot)) {
            wrong.push(invalid("boot", &boot, "must be between -100 and 0, inclusive"));
        }
        if self.pattern.len() > MAX_PATTERN_LEN {
            wrong.push(format!("pattern: Too long: may not be more than {MAX_PATTERN_LEN} bytes"));
        } else if self.pattern.contains('\0') {
            wrong.push("pattern: Invalid value: must not have a byte of zero".to_owned());
        }
        wrong
    }

    /// The arguments of `journalctl` for these services. Pure.
    fn arguments(&self, services: &[String]) -> Vec<String> {
        let mut all = vec!["--utc".to_owned(), "--no-pager".to_owned(), "--output=short-precise".to_owned()];
        // Seconds since the epoch: a date would be read in local time.
        all.extend(self.since.map(|time| format!("--since=@{}", time.as_second())));
        all.extend(self.until.map(|time| format!("--until=@{}", time.as_second())));
        if let Some(lines) = self.tail_lines {
            all.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        all.extend(services.iter().map(|service| format!("--unit={service}")));
        if !self.pattern.is_empty() {
            all.extend([format!("--grep={}", self.pattern), "--case-sensitive=false".to_owned()]);
        }
        all.extend(self.boot.map(|boot| format!("--boot={boot}")));
        all
    }
}

/// Candidate log files of a service without a unit, below the log directory. Pure.
fn log_paths(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

/// Serves a query: one file, or the journal of services with a unit and the files of the others.
pub(super) async fn answer(root: PathBuf, query: NodeLogQuery) -> Response {
    let until = Instant::now() + QUERY_TIMEOUT;
    let mut sources: Vec<Box<dyn AsyncRead + Send + Unpin>> = Vec::new();
    if let [file] = query.files.as_slice() {
        return match open_first(&root, &[file.trim_start_matches('/').to_owned()]).await {
            Ok(file) => respond(vec![Box::new(file)], until),
            Err(error) => refuse(StatusCode::NOT_ACCEPTABLE, format!("query: Invalid value: {file:?}: {error}")),
        };
    }
    let units = if query.services.is_empty() { Ok(Vec::new()) } else { units().await };
    let has_unit = |service: &String| {
        units.as_ref().is_ok_and(|units| {
            let name = if service.contains('.') { service.clone() } else { format!("{service}.service") };
            units.contains(&name)
        })
    };
    let (journal, others): (Vec<String>, Vec<String>) = query.services.iter().cloned().partition(has_unit);
    for service in &others {
        match open_first(&root, &log_paths(service)).await {
            Ok(file) => sources.push(Box::new(file)),
            Err(_) => {
                let why = match &units {
                    Ok(_) => "there is no unit of this name in the journal".to_owned(),
                    Err(error) => format!("journalctl failed: {error}"),
                };
                let candidates = log_paths(service).join(", ");
                return refuse(
                    StatusCode::NOT_FOUND,
                    format!(
                        "no log of {service:?}: {why}, and none of these is a file of the log directory: {candidates}"
                    ),
                );
            }
        }
    }
    if !journal.is_empty() {
        let mut command = Command::new("journalctl");
        command.args(query.arguments(&journal)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        match command.kill_on_drop(true).spawn() {
            Ok(mut child) => match child.stdout.take() {
                // Killed when the response is dropped.
                Some(output) => sources.push(Box::new(ChildOutput { output, _child: child })),
                None => return refuse(StatusCode::INTERNAL_SERVER_ERROR, "journalctl has no output"),
            },
            Err(error) => {
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to start journalctl: {error}"));
            }
        }
    }
    respond(sources, until)
}

/// The output of a child process, which is killed when this is dropped.
struct ChildOutput {
    output: tokio::process::ChildStdout,
    _child: tokio::process::Child,
}

impl AsyncRead for ChildOutput {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.output).poll_read(cx, buf)
    }
}

/// Streams the sources one after the other, until the query times out.
fn respond(sources: Vec<Box<dyn AsyncRead + Send + Unpin>>, until: Instant) -> Response {
    let chunks = stream::iter(sources).flat_map(ReaderStream::new);
    let body = Body::from_stream(chunks.take_until(tokio::time::sleep_until(until)));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// Opens the first of these paths below `root` that is a file.
async fn open_first(root: &Path, paths: &[String]) -> io::Result<tokio::fs::File> {
    let (root, paths) = (root.to_owned(), paths.to_vec());
    let file: File = windlass_kit::blocking::LOGS
        .io(move || {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for path in paths {
                match open_entry(&root, Path::new(&path)) {
                    Ok(Entry::File(file, _)) => return Ok(file),
                    Ok(Entry::Directory(_)) => last = io::ErrorKind::IsADirectory.into(),
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
        .await?;
    Ok(tokio::fs::File::from_std(file))
}

/// Units that have logged to the journal.
async fn units() -> io::Result<Vec<String>> {
    let mut command = Command::new("journalctl");
    command.arg("--field=_SYSTEMD_UNIT").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut names = String::new();
    let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let ended = async {
        output.take(MAX_UNIT_LIST_BYTES).read_to_string(&mut names).await?;
        child.wait().await
    };
    match tokio::time::timeout(QUERY_TIMEOUT, ended).await {
        Ok(ended) => succeeded(ended?)?,
        Err(_) => return Err(io::Error::other(format!("no answer in {} s", QUERY_TIMEOUT.as_secs()))),
    }
    Ok(names.lines().map(str::to_owned).collect())
}

fn succeeded(status: ExitStatus) -> io::Result<()> {
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

#[cfg(test)]
mod tests;
