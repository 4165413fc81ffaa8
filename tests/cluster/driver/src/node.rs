//! Node: a volume becomes a loop device, its filesystem a mount, both a path in a pod.
//!
//! The kernel knows what is attached and mounted; the records say what was asked for. A call that
//! comes again finds what is there and does the rest, so a driver may be killed between any two
//! steps.

mod steps;

use crate::driver::Service;
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::rpc::Type as Rpc;
use crate::proto::csi::node_service_capability::{self, Type};
use crate::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
};
use std::collections::HashMap;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        self.serve("NodeStageVolume", request, steps::stage).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        self.serve("NodeUnstageVolume", request, steps::unstage).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        self.serve("NodePublishVolume", request, steps::publish).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        self.serve("NodeUnpublishVolume", request, steps::unpublish).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        self.serve("NodeGetVolumeStats", request, steps::stats).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        self.serve("NodeExpandVolume", request, steps::expand).await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        self.serve("NodeGetCapabilities", request, |_, _| {
            let calls = [
                Rpc::StageUnstageVolume,
                Rpc::GetVolumeStats,
                Rpc::ExpandVolume,
                Rpc::SingleNodeMultiWriter,
            ];
            let capability = |rpc: Rpc| {
                let rpc = node_service_capability::Rpc { r#type: rpc.into() };
                NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) }
            };
            let capabilities = calls.into_iter().map(capability).collect();
            Ok(NodeGetCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn node_get_info(
        &self,
        request: Request<NodeGetInfoRequest>,
    ) -> Answer<NodeGetInfoResponse> {
        self.serve("NodeGetInfo", request, |call, _| {
            let node = call.driver.node.clone();
            let segments = HashMap::from([(call.driver.topology_key(), node.clone())]);
            Ok(NodeGetInfoResponse {
                node_id: node,
                max_volumes_per_node: 0,
                accessible_topology: Some(Topology { segments }),
            })
        })
        .await
    }
}
