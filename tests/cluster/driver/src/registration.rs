//! The kubelet's way to the driver: it finds this socket in a folder that it watches, and asks.

use crate::proto::registration::registration_server::Registration;
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tonic::{Request, Response, Status};

/// What the kubelet is told.
#[derive(Debug)]
pub(crate) struct Registrar {
    pub(crate) name: String,
    /// The path of the socket that serves CSI.
    pub(crate) endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(
        &self,
        _request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("the kubelet has registered {}", self.name);
        } else {
            tracing::error!("the kubelet does not register {}: {}", self.name, status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
