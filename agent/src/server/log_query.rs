//! `/logs/?query=`: what services of the node have logged, of journald or, for those that do not log there, of their
//! files below the log folder (KEP-2258, `kubelet_server_journal.go`). What is asked for is read purely; `journalctl`
//! reads the journal, with the texts of a request as arguments of their own, never by a shell.

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
    files::{Found, look},
    refuse,
};

/// The longest that a query runs, as upstream's.
const LONGEST: Duration = Duration::from_secs(30);
/// The most lines that can be asked for, as upstream's.
const MOST_LINES: i64 = 100_000;
/// The longest pattern.
const LONGEST_PATTERN: usize = 1024;
/// What is kept of the names of units.
const MOST_UNITS: u64 = 4 << 20;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    services: Vec<String>,
    /// Paths below the log folder.
    files: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail_lines: Option<i64>,
    pattern: String,
    /// 0 for this boot of the machine, -1 for the one before.
    boot: Option<i64>,
}

impl NodeLogQuery {
    /// Reads the parameters of a request; `None` where none of them is one of a query. Pure.
    ///
    /// # Errors
    /// All that contradicts upstream's rules, in one text.
    pub(super) fn of(parameters: &[(String, String)]) -> Option<Result<Self, String>> {
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
        if let Some(lines) = self.tail_lines.filter(|lines| !(0..=MOST_LINES).contains(lines)) {
            wrong.push(invalid("tailLines", &lines, &format!("must be between 0 and {MOST_LINES}, inclusive")));
        }
        if let Some(boot) = self.boot.filter(|boot| !(-100..=0).contains(boot)) {
            wrong.push(invalid("boot", &boot, "must be between -100 and 0, inclusive"));
        }
        if self.pattern.len() > LONGEST_PATTERN {
            wrong.push(format!("pattern: Too long: may not be more than {LONGEST_PATTERN} bytes"));
        } else if self.pattern.contains('\0') {
            wrong.push("pattern: Invalid value: must not have a byte of zero".to_owned());
        }
        wrong
    }

    /// The arguments of `journalctl` for these services. Pure.
    fn arguments(&self, services: &[String]) -> Vec<String> {
        let mut all = vec!["--utc".to_owned(), "--no-pager".to_owned(), "--output=short-precise".to_owned()];
        // Seconds of the epoch: a date would be read in the zone of the machine.
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

/// Where a service without a unit may log, below the log folder. Pure.
fn places(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

/// Answers a query: one file, or the journal of the services that have a unit and the files of the others.
pub(super) async fn answer(root: PathBuf, query: NodeLogQuery) -> Response {
    let until = Instant::now() + LONGEST;
    let mut parts: Vec<Box<dyn AsyncRead + Send + Unpin>> = Vec::new();
    if let [file] = query.files.as_slice() {
        return match open(&root, &[file.trim_start_matches('/').to_owned()]).await {
            Ok(file) => text(vec![Box::new(file)], until),
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
        match open(&root, &places(service)).await {
            Ok(file) => parts.push(Box::new(file)),
            Err(_) => {
                let why = match &units {
                    Ok(_) => "there is no unit of this name in the journal".to_owned(),
                    Err(error) => format!("journalctl failed: {error}"),
                };
                let where_else = places(service).join(", ");
                return refuse(
                    StatusCode::NOT_FOUND,
                    format!(
                        "no log of {service:?}: {why}, and none of these is a file of the log folder: {where_else}"
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
                // It ends with the answer: when that is dropped, so is it.
                Some(output) => parts.push(Box::new(Owned { output, _child: child })),
                None => return refuse(StatusCode::INTERNAL_SERVER_ERROR, "journalctl has no output"),
            },
            Err(error) => {
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to start journalctl: {error}"));
            }
        }
    }
    text(parts, until)
}

/// A program's output, with the program.
struct Owned {
    output: tokio::process::ChildStdout,
    _child: tokio::process::Child,
}

impl AsyncRead for Owned {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.output).poll_read(cx, buf)
    }
}

/// What the parts give one after the other, until the time of a query is over.
fn text(parts: Vec<Box<dyn AsyncRead + Send + Unpin>>, until: Instant) -> Response {
    let pieces = stream::iter(parts).flat_map(ReaderStream::new);
    let body = Body::from_stream(pieces.take_until(tokio::time::sleep_until(until)));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// The first of these paths below `root` that is a file.
async fn open(root: &Path, paths: &[String]) -> io::Result<tokio::fs::File> {
    let (root, paths) = (root.to_owned(), paths.to_vec());
    let file: File = windlass_kit::blocking::io(move || {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for path in paths {
            match look(&root, Path::new(&path)) {
                Ok(Found::File(file, _)) => return Ok(file),
                Ok(Found::Folder(_)) => last = io::ErrorKind::IsADirectory.into(),
                Err(error) => last = error,
            }
        }
        Err(last)
    })
    .await?;
    Ok(tokio::fs::File::from_std(file))
}

/// The units that have logged to the journal.
async fn units() -> io::Result<Vec<String>> {
    let mut command = Command::new("journalctl");
    command.arg("--field=_SYSTEMD_UNIT").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut names = String::new();
    let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let ended = async {
        output.take(MOST_UNITS).read_to_string(&mut names).await?;
        child.wait().await
    };
    match tokio::time::timeout(LONGEST, ended).await {
        Ok(ended) => succeeded(ended?)?,
        Err(_) => return Err(io::Error::other(format!("no answer in {} s", LONGEST.as_secs()))),
    }
    Ok(names.lines().map(str::to_owned).collect())
}

fn succeeded(status: ExitStatus) -> io::Result<()> {
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

#[cfg(test)]
#[path = "log_query_tests.rs"]
mod tests;
