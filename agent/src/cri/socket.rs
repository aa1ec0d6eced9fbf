//! The socket's file. Only its owner may connect, and it is made again when it is gone: programs that are started later look
//! for it by its path.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _},
            net::UnixListener as StdListener,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::{
        inotify::AddWatchFlags,
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
        stat::{Mode, fchmod},
    },
    unistd::geteuid,
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::{Instant, sleep_until},
};
use windlass_kit::{inotify::Watch, serve::LocalListener};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long somebody else who listens on the socket may take to accept.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait after the socket could not be made again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the CRI socket {} could not be made: {reason}; see criSocket", .path.display())]
pub struct SocketError {
    path: PathBuf,
    reason: String,
}

/// The socket of the façade, with its file. Dropping it removes the file, if that is still its own.
#[derive(Debug)]
pub(crate) struct SocketListener {
    path: PathBuf,
    listener: UnixListener,
    /// Device and inode of the file.
    file: (u64, u64),
    /// Of the directory; without one the loss of the file is not noticed.
    watch: Option<Watch>,
    /// The file is gone and could not be made again yet.
    retry_at: Option<Instant>,
}

impl SocketListener {
    /// Makes the socket, in place of one that nobody listens on any more.
    ///
    /// # Errors
    /// When somebody listens on it, something else is there, or others may write to the directory.
    pub(crate) async fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |reason: String| SocketError { path: path.to_owned(), reason };
        // From before the file is made, so that its loss is not missed.
        let watch = watch(path);
        make_room(path).await.map_err(failed)?;
        let (listener, file) = make(path).map_err(|error| failed(error.to_string()))?;
        Ok(Self { path: path.to_owned(), listener, file, watch, retry_at: None })
    }

    /// Makes the file again if it is gone. Connections stay as they are.
    async fn restore(&mut self) {
        if self.has_file() {
            self.retry_at = None;
            return;
        }
        let watch = watch(&self.path);
        let made = match make_room(&self.path).await {
            Ok(()) => make(&self.path).map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match made {
            Ok((listener, file)) => {
                tracing::info!(socket = %self.path.display(), "made the CRI socket again, whose file was gone");
                (self.listener, self.file, self.watch, self.retry_at) = (listener, file, watch, None);
            }
            Err(error) => {
                tracing::warn!(socket = %self.path.display(), error, "failed to make the CRI socket again, whose file is gone; retrying");
                self.retry_at = Some(Instant::now() + RETRY_DELAY);
            }
        }
    }

    fn has_file(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }
}

impl LocalListener for SocketListener {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            let changed = async {
                match &self.watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let retry = async {
                match self.retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                () = changed => {}
                () = retry => {}
            }
            self.restore().await;
        }
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        if self.has_file() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Watches the directory of a socket for files that go, or are replaced.
fn watch(path: &Path) -> Option<Watch> {
    let changes = AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    let watched = Watch::new(path.parent()?, changes);
    watched
        .inspect_err(|error| {
            tracing::warn!(socket = %path.display(), %error, "failed to watch the directory of the CRI socket; if its file is removed, it stays so until a restart");
        })
        .ok()
}

/// Removes a socket that nobody listens on.
async fn make_room(path: &Path) -> Result<(), String> {
    let dir = path.parent().ok_or_else(|| "it has no directory".to_owned())?;
    let of_dir = fs::metadata(dir).map_err(|error| format!("its directory {}: {error}", dir.display()))?;
    if !of_dir.is_dir() {
        return Err(format!("{} is no directory", dir.display()));
    }
    // Who may write there could put a socket of his own in its place.
    let is_own = of_dir.uid() == geteuid().as_raw() || of_dir.uid() == 0;
    if !is_own || of_dir.mode() & 0o022 != 0 {
        return Err(format!("others than root may write to its directory {}", dir.display()));
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err("there is something that is no socket".to_owned()),
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| format!("the one of an earlier process could not be removed: {error}")),
        // Removed meanwhile.
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) => Err(format!("it cannot be seen whether somebody listens there: {error}")),
        Ok(Ok(_)) | Err(_) => Err("another program listens there".to_owned()),
    }
}

/// Makes the socket; the file has its mode from its beginning.
fn make(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    let made = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    // Linux gives the file the mode that the socket has before it is bound, less the umask.
    fchmod(&made, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(made.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&made, Backlog::new(BACKLOG)?)?;
    let found = fs::symlink_metadata(path)?;
    Ok((UnixListener::from_std(StdListener::from(made))?, (found.dev(), found.ino())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::until;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode()
    }

    #[tokio::test]
    async fn the_socket_is_its_owners_alone_and_goes_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        let mut first = SocketListener::bind(&path).await.unwrap();
        assert_eq!(mode(&path) & 0o777, 0o600);
        let (accepted, connected) = tokio::join!(first.accept(), UnixStream::connect(&path));
        assert!(accepted.is_ok() && connected.is_ok());
        let refused = SocketListener::bind(&path).await.unwrap_err().to_string();
        assert!(refused.contains("another program listens there"), "{refused}");
        drop(first);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "as a process leaves it that was killed");
        drop(SocketListener::bind(&path).await.unwrap());
        fs::write(&path, "data").unwrap();
        let why = SocketListener::bind(&path).await.unwrap_err().to_string();
        assert!(why.contains("no socket") && fs::read(&path).unwrap() == b"data", "{why}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(SocketListener::bind(&path).await.is_err());
        fs::remove_file(&path).unwrap();
        assert!(SocketListener::bind(&dir.path().join("none/cri.sock")).await.is_err());
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let why = SocketListener::bind(&shared.join("cri.sock")).await.unwrap_err().to_string();
        assert!(why.contains("others than root may write"), "{why}");
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_removed_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        let mut listener = SocketListener::bind(&path).await.unwrap();
        let accepting = tokio::spawn(async move {
            let accepted = listener.accept().await.is_ok();
            (accepted, listener)
        });
        fs::remove_file(&path).unwrap();
        until("the file is there again", || path.exists()).await;
        assert_eq!(mode(&path) & 0o777, 0o600);
        UnixStream::connect(&path).await.unwrap();
        let (accepted, listener) = accepting.await.unwrap();
        assert!(accepted);
        // What somebody else has put there stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
