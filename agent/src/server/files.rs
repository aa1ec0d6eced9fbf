//! `/logs/`: the files of the node's log folder. Nothing outside of it is reached, neither by `..` nor by links.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path as FilePath, PathBuf},
};

use axum::{
    body::Body,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    response::{Html, IntoResponse as _, Redirect, Response},
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};
use tokio_util::io::ReaderStream;
use windlass_kit::percent;

use super::{ServerState, refuse};

/// What is read of a file at once.
const PIECE: usize = 256 << 10;

/// What a path leads to.
enum Found {
    File(File, u64),
    /// The names in a folder, those of folders with a slash behind them.
    Folder(Vec<String>),
}

pub(super) async fn root(state: State<ServerState>, request: Request) -> Response {
    serve(state, Path(String::new()), request).await
}

pub(super) async fn serve(State(state): State<ServerState>, Path(path): Path<String>, request: Request) -> Response {
    let (root, wanted) = (PathBuf::from(&state.system_logs), PathBuf::from(&path));
    let found = tokio::task::spawn_blocking(move || look(&root, &wanted)).await;
    let as_folder = request.uri().path().ends_with('/');
    match found {
        Ok(Ok(Found::File(..))) if as_folder => refuse(StatusCode::NOT_FOUND, "404 page not found"),
        Ok(Ok(Found::File(file, length))) => {
            let body = Body::from_stream(ReaderStream::with_capacity(
                tokio::io::AsyncReadExt::take(tokio::fs::File::from_std(file), length),
                PIECE,
            ));
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
        }
        Ok(Ok(Found::Folder(_))) if !as_folder => {
            // Its links are relative to it.
            let name = path.rsplit('/').next().unwrap_or("logs");
            Redirect::permanent(&format!("{}/", percent::encoded(if name.is_empty() { "logs" } else { name }, "/")))
                .into_response()
        }
        Ok(Ok(Found::Folder(names))) => Html(listing(&names)).into_response(),
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                refuse(StatusCode::NOT_FOUND, "404 page not found")
            }
            // A path out of the folder, a device, a pipe, or a file that may not be read.
            _ => refuse(StatusCode::FORBIDDEN, "403 Forbidden"),
        },
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Opens `wanted` below `root`. Blocking.
fn look(root: &FilePath, wanted: &FilePath) -> io::Result<Found> {
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let wanted = if wanted.as_os_str().is_empty() { FilePath::new(".") } else { wanted };
    // A pipe without a writer must not hold up the thread.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found = openat2(root.as_fd(), wanted, how).map_err(|e| match e {
        Errno::EXDEV | Errno::ELOOP => io::Error::from(io::ErrorKind::PermissionDenied),
        other => other.into(),
    })?;
    let file = File::from(found);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(Found::File(file, metadata.len()));
    }
    if !metadata.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut names = Vec::new();
    // By its descriptor: the path may lead elsewhere by now.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        names.push(if entry.file_type().is_ok_and(|t| t.is_dir()) { name + "/" } else { name });
    }
    names.sort_unstable();
    Ok(Found::Folder(names))
}

/// The page of a folder, as Go's file server writes it.
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
        let kind = |path: &str| match look(&root, FilePath::new(path)) {
            Ok(Found::File(_, length)) => format!("file of {length}"),
            Ok(Found::Folder(names)) => names.join(" "),
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
