//! `/logs/`: the files of the node's log directory. Nothing outside of it is reachable, neither by `..` nor by
//! symlinks.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path as FilePath, PathBuf},
};

use axum::{
    body::Body,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{Html, IntoResponse as _, Redirect, Response},
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;
use windlass_kit::{blocking::LOGS, percent, serve::headers};

use super::{
    ServerState,
    log_query::{self, NodeLogQuery},
    refuse,
};

/// Bytes of one read.
const CHUNK_BYTES: usize = 256 << 10;

/// What a path names.
pub(super) enum Entry {
    File(File, u64),
    /// The names in a directory, those of directories with a trailing slash.
    Directory(Vec<String>),
}

pub(super) async fn root(state: State<ServerState>, request: Request) -> Response {
    serve(state, Path(String::new()), request).await
}

pub(super) async fn serve(State(state): State<ServerState>, Path(path): Path<String>, request: Request) -> Response {
    let logs = &state.system_logs;
    if logs.query
        && let Some(query) = NodeLogQuery::parse(&query_pairs(request.uri()))
    {
        return match query {
            _ if !path.is_empty() => refuse(StatusCode::NOT_ACCEPTABLE, format!("{path} not allowed in query mode")),
            Ok(query) => log_query::answer(logs.root.clone(), query).await,
            Err(why) => refuse(StatusCode::NOT_ACCEPTABLE, why),
        };
    }
    let (root, wanted) = (logs.root.clone(), PathBuf::from(&path));
    let entry = LOGS.call(move || open_entry(&root, &wanted)).await;
    let as_directory = request.uri().path().ends_with('/');
    match entry {
        Ok(Ok(Entry::File(..))) if as_directory => refuse(StatusCode::NOT_FOUND, "404 page not found"),
        Ok(Ok(Entry::File(file, length))) => serve_range(file, length, request.headers()).await,
        Ok(Ok(Entry::Directory(_))) if !as_directory => {
            // Its links are relative to it.
            let name = path.rsplit('/').next().unwrap_or("logs");
            Redirect::permanent(&format!("{}/", percent::encoded(if name.is_empty() { "logs" } else { name }, "/")))
                .into_response()
        }
        Ok(Ok(Entry::Directory(names))) => Html(listing(&names)).into_response(),
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                refuse(StatusCode::NOT_FOUND, "404 page not found")
            }
            // A path out of the directory, a device, a pipe, or an unreadable file.
            _ => refuse(StatusCode::FORBIDDEN, "403 Forbidden"),
        },
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The parameters of a request.
fn query_pairs(uri: &Uri) -> Vec<(String, String)> {
    Query::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// Serves the requested range of a file, or all of it.
async fn serve_range(file: File, length: u64, headers: &HeaderMap) -> Response {
    // Files have no validators for If-Range: the file may have changed, so all of it is sent.
    let wanted = headers.contains_key(header::RANGE) && !headers.contains_key(header::IF_RANGE);
    let wanted = wanted.then(|| headers::shown(headers, header::RANGE.as_str()));
    let (first, count, code) = match wanted.map_or(Range::Whole, |v| range(&v, length)) {
        Range::Whole => (0, length, StatusCode::OK),
        Range::Part(first, last) => (first, last - first + 1, StatusCode::PARTIAL_CONTENT),
        Range::Outside => {
            let mut answer = refuse(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range: failed to overlap");
            insert(&mut answer, header::CONTENT_RANGE, &format!("bytes */{length}"));
            return answer;
        }
    };
    let mut file = tokio::fs::File::from_std(file);
    if let Err(error) = file.seek(io::SeekFrom::Start(first)).await {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    }
    let body = Body::from_stream(ReaderStream::with_capacity(file.take(count), CHUNK_BYTES));
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::ACCEPT_RANGES, "bytes")];
    let mut answer = (code, kind, body).into_response();
    if code == StatusCode::PARTIAL_CONTENT {
        insert(&mut answer, header::CONTENT_RANGE, &format!("bytes {first}-{}/{length}", first + count - 1));
    }
    answer
}

fn insert(answer: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// A parsed `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// No byte range, or several, which a server may ignore.
    Whole,
    /// The first byte and the last.
    Part(u64, u64),
    /// Not satisfiable.
    Outside,
}

/// Parses a `Range` header (RFC 9110, 14.1) for a file of this length. Pure.
fn range(text: &str, length: u64) -> Range {
    let Some((first, last)) = text.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            None => Range::Whole,
            Some(0) => Range::Outside,
            Some(_) if length == 0 => Range::Outside,
            Some(count) => Range::Part(length.saturating_sub(count), length - 1),
        },
        (first, last) => {
            let (Some(first), Some(last)) =
                (number(first), if last.is_empty() { Some(u64::MAX) } else { number(last) })
            else {
                return Range::Whole;
            };
            if last < first {
                Range::Whole
            } else if first >= length {
                Range::Outside
            } else {
                Range::Part(first, last.min(length - 1))
            }
        }
    }
}

/// Opens `wanted` below `root`. Blocking.
pub(super) fn open_entry(root: &FilePath, wanted: &FilePath) -> io::Result<Entry> {
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let wanted = if wanted.as_os_str().is_empty() { FilePath::new(".") } else { wanted };
    // Non-blocking, so that a pipe without a writer does not block the thread.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let entry = openat2(root.as_fd(), wanted, how).map_err(|e| match e {
        Errno::EXDEV | Errno::ELOOP => io::Error::from(io::ErrorKind::PermissionDenied),
        other => other.into(),
    })?;
    let file = File::from(entry);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(Entry::File(file, metadata.len()));
    }
    if !metadata.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut names = Vec::new();
    // By its descriptor: the path may name another directory by now.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        names.push(if entry.file_type().is_ok_and(|t| t.is_dir()) { name + "/" } else { name });
    }
    names.sort_unstable();
    Ok(Entry::Directory(names))
}

/// The listing of a directory, as Go's file server writes it.
fn listing(names: &[String]) -> String {
    let mut page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        page.push_str(&format!("<a href=\"{}\">{}</a>\n", percent::encoded(name, "/"), html(name)));
    }
    page + "</pre>\n"
}

fn html(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn ranges_of_a_file() {
        for (text, length, expected) in [
            ("bytes=0-4", 10, Range::Part(0, 4)),
            ("bytes=5-", 10, Range::Part(5, 9)),
            ("bytes=-3", 10, Range::Part(7, 9)),
            ("bytes=-30", 10, Range::Part(0, 9)),
            ("bytes=8-99", 10, Range::Part(8, 9)),
            ("bytes=10-", 10, Range::Outside),
            ("bytes=-0", 10, Range::Outside),
            ("bytes=0-", 0, Range::Outside),
            ("bytes=-5", 0, Range::Outside),
            ("bytes=4-2", 10, Range::Whole),
            ("bytes=0-1,4-5", 10, Range::Whole),
            ("bytes=x-", 10, Range::Whole),
            ("bytes=-", 10, Range::Whole),
            ("lines=0-4", 10, Range::Whole),
            ("bytes=99999999999999999999-", 10, Range::Whole),
        ] {
            assert_eq!(range(text, length), expected, "{text} of {length}");
        }
    }

    #[tokio::test]
    async fn a_part_of_a_file_is_served() {
        use http_body_util::BodyExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "0123456789").unwrap();
        let ask = async |name: HeaderName, range: &'static str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(range))]);
            let answer = serve_range(File::open(&path).unwrap(), 10, &headers).await;
            let (code, told) = (answer.status().as_u16(), answer.headers().get(header::CONTENT_RANGE).cloned());
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (code, told.map(|v| v.to_str().unwrap().to_owned()), String::from_utf8(body.to_vec()).unwrap())
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(ask(header::RANGE, "bytes=2-3").await, (206, told("bytes 2-3/10"), "23".into()));
        assert_eq!(ask(header::RANGE, "bytes=10-").await.0, 416);
        assert_eq!(ask(header::RANGE, "bytes=10-").await.1, told("bytes */10"));
        assert_eq!(ask(header::ACCEPT, "x").await, (200, None, "0123456789".into()));
    }

    #[test]
    fn only_what_is_inside_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(root.join("a&b"), "text").unwrap();
        symlink("a&b", root.join("inside")).unwrap();
        symlink("../secret", root.join("outside")).unwrap();
        symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
        symlink("..", root.join("up")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRUSR).unwrap();
        let kind = |path: &str| match open_entry(&root, FilePath::new(path)) {
            Ok(Entry::File(_, length)) => format!("file of {length}"),
            Ok(Entry::Directory(names)) => names.join(" "),
            Err(error) => format!("{:?}", error.kind()),
        };
        assert_eq!(kind(""), "a&b absolute inside outside pipe sub/ up");
        assert_eq!(kind("a&b"), "file of 4");
        assert_eq!(kind("inside"), "file of 4");
        assert_eq!(kind("sub"), "");
        assert_eq!(kind("sub/../a&b"), "file of 4");
        for path in
            ["..", "../secret", "outside", "absolute", "up", "up/secret", "/etc/passwd", "sub/../../secret", "pipe"]
        {
            assert_eq!(kind(path), "PermissionDenied", "{path}");
        }
        assert_eq!(kind("none"), "NotFound");
        assert_eq!(kind("a&b/x"), "NotADirectory");
        assert!(listing(&["a&b".into()]).contains("<a href=\"a%26b\">a&amp;b</a>"));
    }
}
