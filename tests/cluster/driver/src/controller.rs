//! Controller: volumes and snapshots, and which node has a volume. The steps are in `volumes` and
//! `snapshots`; here is how a call reaches them.

mod snapshots;
mod volumes;

pub(crate) use snapshots::answer as snapshot_answer;

use crate::driver::Service;
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::controller_service_capability::rpc::Type as Rpc;
use crate::proto::csi::controller_service_capability::{self, Type};
use crate::proto::csi::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest,
    CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
    DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Answer<CreateVolumeResponse> {
        self.serve("CreateVolume", request, volumes::create).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Answer<DeleteVolumeResponse> {
        self.serve("DeleteVolume", request, volumes::delete).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        self.serve("ControllerPublishVolume", request, volumes::publish).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        self.serve("ControllerUnpublishVolume", request, volumes::unpublish).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        self.serve("ValidateVolumeCapabilities", request, volumes::validate).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Answer<ListVolumesResponse> {
        self.serve("ListVolumes", request, volumes::list).await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Answer<GetCapacityResponse> {
        self.serve("GetCapacity", request, volumes::capacity).await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        self.serve("ControllerGetCapabilities", request, |call, _| {
            let mut calls = vec![
                Rpc::CreateDeleteVolume,
                Rpc::PublishUnpublishVolume,
                Rpc::GetCapacity,
                Rpc::CreateDeleteSnapshot,
                Rpc::GetSnapshot,
                Rpc::CloneVolume,
                Rpc::PublishReadonly,
                Rpc::ExpandVolume,
                Rpc::SingleNodeMultiWriter,
            ];
            if call.faults.lists() {
                calls.extend([
                    Rpc::ListVolumes,
                    Rpc::ListVolumesPublishedNodes,
                    Rpc::ListSnapshots,
                ]);
            }
            let capability = |rpc: Rpc| {
                let rpc = controller_service_capability::Rpc { r#type: rpc.into() };
                ControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }
            };
            let capabilities = calls.into_iter().map(capability).collect();
            Ok(ControllerGetCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        self.serve("CreateSnapshot", request, snapshots::create).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        self.serve("DeleteSnapshot", request, snapshots::delete).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Answer<ListSnapshotsResponse> {
        self.serve("ListSnapshots", request, snapshots::list).await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Answer<GetSnapshotResponse> {
        self.serve("GetSnapshot", request, snapshots::get).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        self.serve("ControllerExpandVolume", request, volumes::expand).await
    }
}
