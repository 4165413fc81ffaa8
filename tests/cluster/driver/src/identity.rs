//! Identity: the driver's name, version and services.

use crate::driver::Service;
use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::plugin_capability::service::Type as ServiceType;
use crate::proto::csi::plugin_capability::volume_expansion::Type as Expansion;
use crate::proto::csi::plugin_capability::{self, Type};
use crate::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use std::collections::HashMap;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        self.serve("GetPluginInfo", request, |call, _| {
            Ok(GetPluginInfoResponse {
                name: call.driver.name.clone(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                manifest: HashMap::new(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        self.serve("GetPluginCapabilities", request, |call, _| {
            let mut services = vec![
                ServiceType::ControllerService,
                ServiceType::VolumeAccessibilityConstraints,
                ServiceType::GroupControllerService,
            ];
            if call.faults.tracks() {
                services.push(ServiceType::SnapshotMetadataService);
            }
            let service = |kind: ServiceType| {
                Type::Service(plugin_capability::Service { r#type: kind.into() })
            };
            let grows = plugin_capability::VolumeExpansion { r#type: Expansion::Online.into() };
            let kinds = services.into_iter().map(service).chain([Type::VolumeExpansion(grows)]);
            let capabilities = kinds.map(|kind| PluginCapability { r#type: Some(kind) }).collect();
            Ok(GetPluginCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn probe(
        &self,
        request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        self.serve("Probe", request, |_, _| Ok(ProbeResponse { ready: Some(true) })).await
    }
}
