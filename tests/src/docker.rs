//! Docker's own word: which containers run, and a minimal client of its API, for the cost of a pod's two containers without
//! Windlass.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{Testbed, try_run};

impl Testbed {
    /// The ids of the running containers that match these filters of `docker ps`, newest first. Docker lists from a
    /// snapshot that it updates only after it has reported an exit and cleaned up; so each listed container is
    /// inspected.
    pub fn running_containers(&self, filters: &[&str]) -> Vec<String> {
        let runs = |id: &String| {
            let host = self.docker_host();
            let running =
                try_run("docker", &["-H", &host, "inspect", "--type=container", "-f", "{{.State.Running}}", id]);
            match running {
                Ok(running) => running.trim() == "true",
                // It was removed meanwhile.
                Err(error) if format!("{error:#}").contains("No such container") => false,
                Err(error) => panic!("{error:#}"),
            }
        };
        self.listed("-q", filters).into_iter().filter(runs).collect()
    }

    /// The ids of the containers that match these filters of `docker ps`, be it that they run or have ended, newest first.
    pub fn all_containers(&self, filters: &[&str]) -> Vec<String> {
        self.listed("-aq", filters)
    }

    fn listed(&self, which: &str, filters: &[&str]) -> Vec<String> {
        let mut args = vec!["ps", which, "--no-trunc"];
        args.extend(filters.iter().flat_map(|filter| ["--filter", filter]));
        self.docker(&args).split_whitespace().map(str::to_owned).collect()
    }
}

/// One connection to Docker Engine that is kept open, as a real client would.
#[derive(Debug)]
pub struct RawDocker {
    stream: BufReader<UnixStream>,
}

impl RawDocker {
    /// Connects to the engine's socket.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            self.stream.get_mut(),
            "{method} {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut status = String::new();
        self.stream.read_line(&mut status)?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse()?;
            }
            chunked |= line == "transfer-encoding: chunked";
        }
        let mut bytes = if chunked { self.chunks()? } else { self.bytes(length)? };
        bytes.truncate(bytes.trim_ascii_end().len());
        let text = String::from_utf8_lossy(&bytes);
        anyhow::ensure!(status.contains(" 20"), "{method} {path}: {}: {text}", status.trim());
        if text.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
    }

    fn bytes(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a chunked body, as sent by requests that Docker answers later.
    fn chunks(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut size = String::new();
            self.stream.read_line(&mut size)?;
            let size =
                usize::from_str_radix(size.trim(), 16).with_context(|| format!("{size:?} is no chunk's size"))?;
            let chunk = self.bytes(size + 2)?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Stops a container with a grace period in seconds, and returns when it has ended.
    ///
    /// # Errors
    /// When Docker refuses.
    pub fn stop(&mut self, id: &str, seconds: i64) -> anyhow::Result<()> {
        self.request("POST", &format!("/v1.41/containers/{id}/stop?t={seconds}"), None).map(drop)
    }

    fn create_and_start(&mut self, name: &str, body: &Value) -> anyhow::Result<String> {
        let made = self.request("POST", &format!("/v1.41/containers/create?name={name}"), Some(body))?;
        let id = made["Id"].as_str().context("no id")?.to_owned();
        self.request("POST", &format!("/v1.41/containers/{id}/start"), None)?;
        Ok(id)
    }

    /// Creates and starts a container without a network.
    ///
    /// # Errors
    /// When Docker refuses.
    pub fn lone_container(&mut self, name: &str, image: &str, command: &[&str]) -> anyhow::Result<String> {
        self.create_and_start(name, &json!({"Image": image, "Cmd": command, "HostConfig": {"NetworkMode": "none"}}))
    }

    /// Does the same steps as a pod with one container: a sandbox without a network, optionally an init container that
    /// joins it and runs to its end, and the main container. Returns the ids of sandbox and main container.
    ///
    /// # Errors
    /// When Docker refuses, or the init container fails.
    pub fn pod(
        &mut self,
        name: &str,
        [pause, image]: [&str; 2],
        init: Option<&[&str]>,
        command: &[&str],
    ) -> anyhow::Result<Vec<String>> {
        let sandbox = self.create_and_start(
            &format!("{name}-sandbox"),
            &json!({"Image": pause, "HostConfig": {"NetworkMode": "none", "IpcMode": "shareable"}}),
        )?;
        let joined = format!("container:{sandbox}");
        let mut ids = vec![sandbox];
        for (role, command) in init.map(|command| ("init", command)).into_iter().chain([("main", command)]) {
            let id = self.create_and_start(
                &format!("{name}-{role}"),
                &json!({"Image": image, "Cmd": command, "HostConfig": {"NetworkMode": joined, "IpcMode": joined}}),
            )?;
            if role == "init" {
                let ended = self.request("POST", &format!("/v1.41/containers/{id}/wait"), None)?;
                anyhow::ensure!(ended["StatusCode"] == 0, "the init container ended with {ended}");
            }
            ids.push(id);
        }
        Ok(ids)
    }
}
