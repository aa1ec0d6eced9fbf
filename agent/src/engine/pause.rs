//! The pause image that every sandbox runs: built into this program, loaded into Docker when it is missing.

use bollard::query_parameters::ImportImageOptions;
use bytes::Bytes;
use futures::TryStreamExt as _;

use super::{Cause, Engine, EngineError, docker_api::LOAD};

/// Its name; the tag follows its content.
pub(crate) const NAME: &str = env!("WINDLASS_PAUSE_IMAGE");
static ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause.tar"));

/// Makes sure that Docker has the image; returns its id.
///
/// # Errors
/// When Docker refuses the image.
pub async fn ensure(engine: &Engine) -> Result<String, EngineError> {
    if let Some(image) = engine.image(NAME).await? {
        return Ok(image.id);
    }
    let docker = engine.patient(LOAD.limit);
    let body = bollard::body_full(Bytes::from_static(ARCHIVE));
    let loaded = docker.import_image(ImportImageOptions { quiet: true, ..ImportImageOptions::default() }, body, None);
    let attempt = || format!("the sandbox image {NAME} could not be loaded into Docker");
    loaded.try_for_each(|_| async { Ok(()) }).await.map_err(|e| EngineError::new(attempt(), &e))?;
    let image = engine.image(NAME).await?;
    image.map(|i| i.id).ok_or_else(|| EngineError {
        attempt: attempt(),
        reason: "it is not there afterwards".to_owned(),
        cause: Cause::Failed,
    })
}

/// Removes the image from Docker. One that does not exist is success.
///
/// # Errors
/// When Docker refuses, for example because a container still uses it.
pub async fn remove(engine: &Engine) -> Result<(), EngineError> {
    engine.remove_image_name(NAME, || format!("the sandbox image {NAME} could not be removed")).await
}
