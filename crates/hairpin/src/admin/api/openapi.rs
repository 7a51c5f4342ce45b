//! The OpenAPI document (version 3.1), made from the table of routes.

use serde_json::{Map, Value, json};

use super::problem;
use super::routes::{Access, Field, ROUTES, Route};

use super::BASE;

/// The OpenAPI document of all routes, as JSON.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = format!("{BASE}{}", route.path);
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "hairpin",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Shows the state of a running server, and changes it. Each change writes an audit line to the log.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of admin.tokens. A client on the machine of the server requires none for operations that list `{}` as security.",
                },
                "credentialToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of admin.credential_tokens, for /api/v1/ice-servers only.",
                },
            },
            "schemas": { "Problem": problem_schema() },
            "responses": {
                "Problem": {
                    "description": "What failed, why, and what to do (RFC 9457).",
                    "content": { problem::MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
        },
    })
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["title", "status", "detail"],
        "properties": {
            "title": { "type": "string", "description": "The name of the status code." },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "mistakes": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Mistakes in the configuration, each with its file and line, or those of a text, each with its line.",
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let kind = match route.path {
        "/events" => "text/event-stream",
        _ => "application/json",
    };
    let mut operation = json!({
        "operationId": format!("{:?}", route.operation),
        "summary": route.summary,
        "security": security(route.access),
        "parameters": parameters(route),
        "responses": {
            "200": { "description": route.result, "content": { kind: {} } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if !route.body.is_empty() {
        operation["requestBody"] = json!({
            "content": { "application/json": { "schema": body(route.body) } },
        });
    }
    operation
}

fn security(access: Access) -> Value {
    match access {
        Access::Read => json!([{ "token": [] }, {}]),
        Access::Change => json!([{ "token": [] }]),
        Access::Credentials => json!([{ "credentialToken": [] }, { "token": [] }]),
    }
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route
        .path
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let in_path = in_path.map(|(name, _)| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let in_query = route.parameters.iter().map(|parameter| {
        let kind = if parameter.is_number {
            "integer"
        } else {
            "string"
        };
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "schema": { "type": kind },
        })
    });
    in_path.into_iter().chain(in_query).collect()
}

fn body(fields: &[Field]) -> Value {
    let property = |(name, kind, about): &Field| {
        let mut schema = json!({ "type": kind, "description": about });
        if *kind == "array" {
            schema["items"] = json!({ "type": "string" });
        }
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}
