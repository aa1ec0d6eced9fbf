//! An image registry in a testbed's network namespace that can inject faults.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{Daemon, Testbed, eventually};

/// A test registry. The prefix of a tag selects how its pull fails, see `serve.py`.
#[derive(Debug)]
pub struct FailingRegistry {
    _server: Daemon,
    port: u16,
    folder: PathBuf,
}

impl FailingRegistry {
    /// Starts a registry on this port of the testbed's loopback.
    ///
    /// # Panics
    /// Without Python or the sample images.
    #[must_use]
    pub fn start(testbed: &Testbed, port: u16) -> Self {
        let folder = testbed.dir().join(format!("failing-registry-{port}"));
        fs::create_dir_all(&folder).expect("a directory can be created");
        let program = folder.join("serve.py");
        fs::write(&program, include_str!("serve.py")).expect("a file can be written");
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("out/images/busybox.tar");
        let mut command = testbed.command("python3");
        command.arg(&program).arg(port.to_string()).arg(&image).arg(&folder);
        let server = Daemon::start("serve.py", &mut command, &folder.join("serve.log")).expect("python3");
        eventually(Duration::from_secs(30), "the failing registry answers", || {
            testbed.try_sh(&format!("curl -fsS --max-time 2 http://127.0.0.1:{port}/v2/")).map(drop)
        });
        Self { _server: server, port, folder }
    }

    /// The image reference of a tag.
    #[must_use]
    pub fn image(&self, tag: &str) -> String {
        format!("127.0.0.1:{}/any/busybox:{tag}", self.port)
    }

    /// From now on tags that ask for an error status work.
    ///
    /// # Panics
    /// When the testbed's directory cannot be written.
    pub fn heal(&self) {
        fs::write(self.folder.join("well"), "").expect("a file can be written");
    }

    /// Sets whether layers break off in the middle.
    ///
    /// # Panics
    /// When the testbed's directory cannot be written.
    pub fn cut_layers(&self, cut: bool) {
        let file = self.folder.join("cut");
        if cut {
            fs::write(&file, "").expect("a file can be written");
        } else {
            let _ = fs::remove_file(&file);
        }
    }
}
