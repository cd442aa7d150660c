"""Audits: what the maps of a whole data set show and a single map cannot."""

from vitrail.bench.audit.audit import Audit, audit_maps
from vitrail.bench.audit.page import write_audit

__all__ = ["Audit", "audit_maps", "write_audit"]
