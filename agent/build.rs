//! Compiles the pause program and packs it as an image that `docker load` takes, so that a node needs no
//! registry to start.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    println!("cargo:rerun-if-changed=pause/pause.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let program = out.join("pause");
    compile(&program)?;
    let layer = layer(&fs::read(&program)?)?;
    let digest = sha256(&layer);
    let tag = format!("windlass/pause:{}", &digest[..8]);
    fs::write(out.join("pause.tar"), image(&layer, &digest, &tag)?)?;
    println!("cargo:rustc-env=WINDLASS_PAUSE_IMAGE={tag}");
    Ok(())
}

fn compile(program: &Path) -> Result<(), Error> {
    let mut command = Command::new(env::var("RUSTC")?);
    command.args([
        "--edition=2024",
        "--crate-name=pause",
        "--crate-type=bin",
        "-O",
        "-Cpanic=abort",
        "-Cstrip=symbols",
    ]);
    command.args([
        "-Crelocation-model=static",
        "-Clink-arg=-nostartfiles",
        "-Clink-arg=-nostdlib",
        "-Clink-arg=-static",
    ]);
    command.args(["-Clink-arg=-Wl,--build-id=none", "-Clink-arg=-Wl,-z,noseparate-code"]);
    command.arg("--target").arg(env::var("TARGET")?);
    command.arg("-o").arg(program).arg("pause/pause.rs");
    let output = command.output()?;
    if !output.status.success() {
        return Err(
            format!("the pause program could not be compiled: {}", String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(())
}

/// The same bytes for the same content: no times, no owners.
fn entry(archive: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &[u8]) -> Result<(), Error> {
    let mut header = tar::Header::new_gnu();
    header.set_size(u64::try_from(content.len())?);
    header.set_mode(mode);
    header.set_cksum();
    archive.append_data(&mut header, name, content)?;
    Ok(())
}

fn layer(program: &[u8]) -> Result<Vec<u8>, Error> {
    let mut archive = tar::Builder::new(Vec::new());
    entry(&mut archive, "pause", 0o755, program)?;
    Ok(archive.into_inner()?)
}

fn image(layer: &[u8], digest: &str, tag: &str) -> Result<Vec<u8>, Error> {
    let architecture = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    };
    let config = format!(
        r#"{{"architecture":"{architecture}","os":"linux","created":"1970-01-01T00:00:00Z","config":{{"Entrypoint":["/pause"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#
    );
    let name = format!("{}.json", sha256(config.as_bytes()));
    let manifest = format!(r#"[{{"Config":"{name}","RepoTags":["{tag}"],"Layers":["{digest}/layer.tar"]}}]"#);
    let mut archive = tar::Builder::new(Vec::new());
    entry(&mut archive, &format!("{digest}/layer.tar"), 0o644, layer)?;
    entry(&mut archive, &name, 0o644, config.as_bytes())?;
    entry(&mut archive, "manifest.json", 0o644, manifest.as_bytes())?;
    Ok(archive.into_inner()?)
}

fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}
