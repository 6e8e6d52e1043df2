# All images: `docker buildx bake -f docker-bake.hcl`; with `stack` at its end, what compose.yaml runs (`make images`).
# VARIANT=cuda builds the families for GPUs, under tags that end in -cuda.

variable "VERSION" {
  default = "0.1.0"
}
variable "VARIANT" {
  default = "cpu"
}
variable "SOURCE_REVISION" {
  default = ""
}
variable "BASE_IMAGE" {
  default = "python:3.11-slim-bookworm"
}
variable "POSTGRES_IMAGE" {
  default = "postgres:17"
}
variable "TORCH_INDEX" {
  default = ""
}
variable "FLASH_ATTN" {
  default = ""
}

function "tag" {
  params = [name]
  result = ["dare-${name}:${VERSION}${VARIANT == "cuda" ? "-cuda" : ""}"]
}

group "default" {
  targets = ["stack", "scale"]
}
group "stack" {
  targets = ["web", "evaluator", "llada", "dream", "sdar", "llada2"]
}

target "base" {
  dockerfile = "images/base/Dockerfile"
  target     = "base"
  args       = { BASE_IMAGE = BASE_IMAGE }
}
target "python" {
  inherits = ["base"]
  target   = "python"
}
target "package" {
  inherits = ["base"]
  target   = "package"
}
target "over-base" {
  contexts = { "dare-base" = "target:base", package = "target:package" }
  args     = { SOURCE_REVISION = SOURCE_REVISION }
}
target "with-torch" {
  inherits = ["over-base"]
  args = {
    LOCK                = VARIANT == "cuda" ? "requirements-cuda.lock" : "requirements.lock"
    TORCH               = VARIANT == "cuda" ? "torch==2.9.1" : "torch==2.13.0"
    PIP_EXTRA_INDEX_URL = TORCH_INDEX
    FLASH_ATTN          = FLASH_ATTN
  }
}

target "web" {
  inherits   = ["over-base"]
  dockerfile = "images/web/Dockerfile"
  args       = { POSTGRES_IMAGE = POSTGRES_IMAGE }
  tags       = ["dare-web:${VERSION}"]
}
target "evaluator" {
  inherits   = ["over-base"]
  dockerfile = "images/evaluator/Dockerfile"
  tags       = ["dare-evaluator:${VERSION}"]
}
target "llada" {
  inherits   = ["with-torch"]
  dockerfile = "images/llada/Dockerfile"
  tags       = tag("llada")
}
target "dream" {
  inherits   = ["with-torch"]
  dockerfile = "images/dream/Dockerfile"
  tags       = tag("dream")
}
target "sdar" {
  inherits   = ["with-torch"]
  dockerfile = "images/sdar/Dockerfile"
  tags       = tag("sdar")
}
target "llada2" {
  inherits   = ["with-torch"]
  dockerfile = "images/llada2/Dockerfile"
  tags       = tag("llada2")
}
# SDAR on a GPU with LMDeploy instead of SGLang.
target "sdar-lmdeploy" {
  inherits   = ["sdar"]
  args       = { TORCH = "torch==2.9.1", LOCK = "requirements-lmdeploy.lock", LMDEPLOY_TORCH = "torch==2.10.0" }
  tags       = ["dare-sdar:${VERSION}-lmdeploy"]
}
target "scale" {
  inherits   = ["over-base"]
  contexts   = { dare-python = "target:python" }
  dockerfile = "images/scale/Dockerfile"
  args       = { PIP_EXTRA_INDEX_URL = TORCH_INDEX }
  tags       = ["dare-scale:${VERSION}"]
}
