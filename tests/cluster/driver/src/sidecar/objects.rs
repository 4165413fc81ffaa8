//! What the service asks the API server: who calls, what they may, and which snapshot of the driver
//! is behind a name.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use serde_json::Value;
use tonic::Status;

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// The API server, as this service sees it.
pub(super) struct Cluster {
    client: Client,
    /// Name of the driver, and of its `SnapshotMetadataService`.
    driver: String,
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn is_ready(object: &DynamicObject) -> bool {
    object.data.pointer("/status/readyToUse").and_then(Value::as_bool).unwrap_or_default()
}

impl Cluster {
    pub(super) const fn new(client: Client, driver: String) -> Self {
        Self { client, driver }
    }

    /// Whether the owner of the token may get snapshots in the namespace.
    pub(super) async fn admit(&self, token: &str, namespace: &str) -> Result<(), Status> {
        let user = self.user(token).await?;
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            resource_attributes: Some(ResourceAttributes {
                verb: Some("get".to_owned()),
                group: Some(SNAPSHOTS.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("volumesnapshots".to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| Status::internal(format!("failed to authorize the user: {error}")))?;
        let status = review.status.unwrap_or_default();
        if !status.allowed || status.denied.unwrap_or_default() {
            return Err(Status::permission_denied(format!(
                "user does not have permissions to perform the operation: {}",
                status.reason.unwrap_or_default()
            )));
        }
        Ok(())
    }

    async fn user(&self, token: &str) -> Result<UserInfo, Status> {
        let failed =
            |error: String| Status::internal(format!("failed to authenticate user: {error}"));
        let audience = self.audience().await.map_err(failed)?;
        let spec =
            TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.clone()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await;
        let status = review.map_err(|error| failed(error.to_string()))?.status.unwrap_or_default();
        let meant = status.audiences.is_some_and(|audiences| audiences.contains(&audience));
        let user = status.user.filter(|_| status.authenticated.unwrap_or_default() && meant);
        user.ok_or_else(|| Status::unauthenticated("unauthenticated user"))
    }

    /// The audience that tokens must be for: what the driver's `SnapshotMetadataService` says now.
    async fn audience(&self) -> Result<String, String> {
        let kind = "SnapshotMetadataService";
        let kind = resource("cbt.storage.k8s.io", "v1beta1", kind, "snapshotmetadataservices");
        let services: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let service = services.get(&self.driver).await.map_err(|error| {
            let driver = &self.driver;
            format!("failed to find the SnapshotMetadataService CR for driver '{driver}': {error}")
        })?;
        let audience = text(&service, "/spec/audience").map(str::to_owned);
        audience.ok_or_else(|| format!("SnapshotMetadataService {} has no audience", self.driver))
    }

    /// The driver's handle of a snapshot that is ready.
    pub(super) async fn handle(&self, namespace: &str, name: &str) -> Result<String, Status> {
        let kind = resource(SNAPSHOTS, "v1", "VolumeSnapshot", "volumesnapshots");
        let snapshots: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &kind);
        let snapshot = snapshots.get(name).await.map_err(|error| {
            if is_not_found(&error) {
                return Status::not_found(format!("VolumeSnapshot not found '{namespace}/{name}'"));
            }
            Status::unavailable(format!(
                "failed to get VolumeSnapshot '{namespace}/{name}': {error}"
            ))
        })?;
        let content = bound_content(&snapshot, name)?;
        let kind = resource(SNAPSHOTS, "v1", "VolumeSnapshotContent", "volumesnapshotcontents");
        let contents: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let found = contents.get(content).await.map_err(|error| {
            if is_not_found(&error) {
                return Status::not_found(format!("VolumeSnapshotContent not found '{content}'"));
            }
            Status::unavailable(format!("failed to get VolumeSnapshotContent '{content}': {error}"))
        })?;
        handle_of(&found, content, &snapshot, name, &self.driver)
    }
}

/// The name of the content of a snapshot that is ready.
fn bound_content<'a>(snapshot: &'a DynamicObject, name: &str) -> Result<&'a str, Status> {
    if !is_ready(snapshot) {
        let text = format!("the VolumeSnapshot is not yet ready, name: {name}");
        return Err(Status::unavailable(text));
    }
    text(snapshot, "/status/boundVolumeSnapshotContentName").ok_or_else(|| {
        Status::unavailable(format!(
            "boundVolumeSnapshotContentName is not set in VolumeSnapshot status, name: {name}"
        ))
    })
}

/// The handle in a content that is ready, of the driver, and of the snapshot that names it.
fn handle_of(
    content: &DynamicObject,
    content_name: &str,
    snapshot: &DynamicObject,
    name: &str,
    driver: &str,
) -> Result<String, Status> {
    if !is_ready(content) {
        let text = format!("the VolumeSnapshotContent is not yet ready, name: {content_name}");
        return Err(Status::unavailable(text));
    }
    let handle = text(content, "/status/snapshotHandle").ok_or_else(|| {
        Status::unavailable(format!(
            "snapshotHandle is not set in VolumeSnapshotContent status, name: {content_name}"
        ))
    })?;
    let uid = snapshot.metadata.uid.as_deref();
    if uid.is_none() || text(content, "/spec/volumeSnapshotRef/uid") != uid {
        return Err(Status::invalid_argument(format!(
            "VolumeSnapshotContent '{content_name}' does not belong to VolumeSnapshot '{name}'"
        )));
    }
    if text(content, "/spec/driver") != Some(driver) {
        return Err(Status::invalid_argument(format!(
            "VolumeSnapshot '{name}' does not belong to the CSI driver '{driver}'"
        )));
    }
    Ok(handle.to_owned())
}

#[cfg(test)]
mod tests;
