//! The calls about images.

use base64::Engine as _;
use windlass_cadvisor::model::{Size, sum_of_sizes};
use windlass_kit::objects::image::Reference;

use super::{
    Cri, convert, filter,
    grpc::{Code, Status},
    messages::{
        AuthConfig, FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec,
        ImageStatusRequest, ImageStatusResponse, ListImagesRequest, ListImagesResponse, PullImageRequest,
        PullImageResponse,
    },
    runtime::status_of,
    stats::number,
};
use crate::{
    engine::{Engine, images::ImageSummary},
    images::{
        Images,
        credentials::{Credentials, Source},
    },
};

/// The name in a request.
fn name_of(spec: Option<ImageSpec>) -> Result<String, Status> {
    let name = spec.map(|spec| spec.image).unwrap_or_default();
    if name.is_empty() {
        return Err(Status::new(Code::InvalidArgument, "the name of the image is missing"));
    }
    Ok(name)
}

/// The credentials of a request, as the image module takes them; `None` without any.
fn credentials(auth: AuthConfig) -> Result<Option<Credentials>, Status> {
    let AuthConfig { username, password, auth, server_address, identity_token, registry_token } = auth;
    let (mut username, mut password) = (username, password.0);
    if username.is_empty() && !auth.0.is_empty() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(auth.0.trim()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let both = text.as_deref().and_then(|text| text.split_once(':'));
        let (user, word) = both.ok_or_else(|| {
            Status::new(Code::InvalidArgument, "the field auth of the credentials is not base64 of user:password")
        })?;
        (username, password) = (user.to_owned(), word.trim_end_matches('\0').to_owned());
    }
    let token = |text: String| Some(text).filter(|text| !text.is_empty());
    let (identity_token, registry_token) = (token(identity_token.0), token(registry_token.0));
    if username.is_empty() && identity_token.is_none() && registry_token.is_none() {
        return Ok(None);
    }
    // A secret of nobody: a pod may use the image without a pull only if it has the same credentials.
    let source = Source::Secret { uid: String::new(), namespace: String::new(), name: String::new() };
    Ok(Some(Credentials { server: server_address, username, password, identity_token, registry_token, source }))
}

/// Pulls an image and records it as one that this node has pulled.
async fn pull(
    engine: &Engine,
    images: &Images,
    name: &str,
    reference: &Reference,
    given: Option<Credentials>,
) -> Result<PullImageResponse, Status> {
    let before = engine.image(name).await.map_err(|error| status_of(&error))?;
    let before = before.filter(|found| found.named).map(|found| found.id);
    let records = images.records();
    records.record_intent(reference, before.as_deref()).await.map_err(|error| {
        Status::new(Code::Internal, format!("failed to record image pull intent for image {name:?}: {error}"))
    })?;
    let pulled = async {
        images.pulls().pull(name, given.iter().map(Credentials::for_docker).collect()).await?;
        engine.image(name).await
    };
    let error = match pulled.await {
        Ok(Some(found)) => {
            records.record_pulled(reference, &found.id, given.as_ref()).await;
            return Ok(PullImageResponse { image_ref: found.shown });
        }
        Ok(None) => Status::new(Code::Internal, format!("image {name:?} was pulled but is not in Docker's store")),
        Err(error) => status_of(&error),
    };
    records.record_failed(reference).await;
    Err(error)
}

/// Bytes and inodes of writable layers: unknown where none could be measured, and nothing without any.
fn sum_of_layers(layers: impl Iterator<Item = Option<Size>>) -> (Option<u64>, Option<u64>) {
    let mut layers = layers.peekable();
    if layers.peek().is_none() {
        return (Some(0), Some(0));
    }
    let sum = sum_of_sizes(layers);
    (sum.map(|sum| sum.bytes), sum.and_then(|sum| sum.inodes))
}

impl Cri {
    /// The images of the store as they are now: the image module lists them every half minute, and a client that has just pulled
    /// one looks for it.
    async fn stored(&self) -> Result<Vec<ImageSummary>, Status> {
        self.engine_version()?;
        self.engine.images().await.map_err(|error| status_of(&error))
    }

    pub(super) async fn list_images(&self, request: ListImagesRequest) -> Result<ListImagesResponse, Status> {
        let wanted = request.filter.and_then(|filter| filter.image).map(|spec| spec.image).unwrap_or_default();
        let stored = self.stored().await?;
        let matching = stored.iter().filter(|image| wanted.is_empty() || filter::image(&wanted, image));
        Ok(ListImagesResponse { images: matching.map(|image| convert::image(image, None)).collect() })
    }

    pub(super) async fn image_status(&self, request: ImageStatusRequest) -> Result<ImageStatusResponse, Status> {
        let name = name_of(request.image)?;
        self.engine_version()?;
        let Some(found) = self.engine.image(&name).await.map_err(|error| status_of(&error))? else {
            return Ok(ImageStatusResponse::default());
        };
        let stored = self.stored().await?;
        let unlisted =
            || ImageSummary { id: found.id.clone(), tags: Vec::new(), digests: Vec::new(), size: found.size };
        let summary = stored.into_iter().find(|image| image.id == found.id).unwrap_or_else(unlisted);
        Ok(ImageStatusResponse { image: Some(convert::image(&summary, Some(&found.user))), ..Default::default() })
    }

    /// Pulls an image as for a pod, and shares the pull with pods that want the same.
    pub(super) async fn pull_image(&self, request: PullImageRequest) -> Result<PullImageResponse, Status> {
        let name = name_of(request.image)?;
        self.engine_version()?;
        let Some(reference) = Reference::parse(&name) else {
            let why = format!("couldn't parse image name {name:?}: invalid reference format");
            return Err(Status::new(Code::InvalidArgument, why));
        };
        let given = credentials(request.auth.unwrap_or_default())?;
        let (engine, images) = (self.engine.clone(), self.images.clone());
        // Apart from the call: a pull goes on when its client does not wait, and is recorded when it ends.
        let pulling = tokio::spawn(async move { pull(&engine, &images, &name, &reference, given).await });
        pulling.await.unwrap_or_else(|_| Err(Status::new(Code::Internal, "the pull was aborted")))
    }

    /// The file system of images, from the last look at the disks; none before the first.
    pub(super) fn image_fs_info(&self, _: &ImageFsInfoRequest) -> ImageFsInfoResponse {
        let storage = self.usage.storage();
        let Some(of_images) = &storage.images else { return ImageFsInfoResponse::default() };
        let mountpoint = storage.image_root.as_ref().map(|root| root.display().to_string()).unwrap_or_default();
        let usage = |bytes: Option<u64>, inodes: Option<u64>| FilesystemUsage {
            timestamp: convert::nanoseconds(of_images.at),
            fs_id: Some(FilesystemIdentifier { mountpoint: mountpoint.clone() }),
            used_bytes: bytes.and_then(number),
            inodes_used: inodes.and_then(number),
        };
        let (bytes, inodes) = sum_of_layers(storage.containers.values().map(|size| size.rootfs));
        let used_inodes = of_images.inodes.saturating_sub(of_images.inodes_free);
        ImageFsInfoResponse {
            image_filesystems: vec![usage(
                Some(storage.image_bytes.unwrap_or(of_images.used_bytes)),
                Some(used_inodes),
            )],
            container_filesystems: vec![usage(bytes, inodes)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::Hidden, *};

    #[test]
    fn layers_that_could_not_be_measured_are_not_empty() {
        let sum = |layers: &[Option<Size>]| sum_of_layers(layers.iter().copied());
        let layer = |bytes, inodes| Some(Size { bytes, inodes });
        assert_eq!(sum(&[]), (Some(0), Some(0)));
        assert_eq!(sum(&[None, None]), (None, None));
        assert_eq!(sum(&[layer(1, Some(2)), None, layer(3, Some(4))]), (Some(4), Some(6)));
        assert_eq!(sum(&[layer(1, Some(2)), layer(3, None)]), (Some(4), None));
    }

    #[test]
    fn credentials_in_each_form() {
        let hidden = |text: &str| Hidden(text.to_owned());
        let auth = |auth: AuthConfig| credentials(auth).map(|found| found.map(|c| (c.username, c.password)));
        let both = Some(("me".to_owned(), "pass:word".to_owned()));
        let plain = AuthConfig { username: "me".into(), password: hidden("pass:word"), ..AuthConfig::default() };
        assert!(!format!("{plain:?}").contains("pass:word"));
        assert_eq!(auth(plain).unwrap(), both);
        let encoded = base64::engine::general_purpose::STANDARD.encode("me:pass:word");
        assert_eq!(auth(AuthConfig { auth: hidden(&encoded), ..AuthConfig::default() }).unwrap(), both);
        assert_eq!(auth(AuthConfig::default()).unwrap(), None);
        for broken in ["!", "bWU="] {
            let refused = auth(AuthConfig { auth: hidden(broken), ..AuthConfig::default() }).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
        }
        let token = AuthConfig { registry_token: hidden("t"), ..AuthConfig::default() };
        assert_eq!(credentials(token).unwrap().unwrap().registry_token.as_deref(), Some("t"));
    }
}
