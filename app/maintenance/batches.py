"""The checks of the API, as maintenance makes them for lines of batches."""

from __future__ import annotations

from app.files.attachments import Attachments
from app.files.documents import DocumentReader
from app.responses.create.acceptor import RequestAcceptor
from app.responses.create.references import ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.models.registered import RegisteredModels
from app.store.database import Database
from app.store.keys import SharedSealer
from config.settings import Settings


def acceptor_of_lines(
    db: Database, sealer: SharedSealer, catalogs: PermittedCatalogs, documents: DocumentReader, settings: Settings
) -> RequestAcceptor:
    """Returns what accepts lines: they name no files by URL, and no limit on requests a minute holds for them."""
    attachments = Attachments(db, documents, None, settings.max_body_bytes, shares=settings.asks_for_keys)
    references = ReferenceResolver(db, sealer, attachments, settings)
    return RequestAcceptor(db, sealer, references, catalogs, RegisteredModels(db), None, settings)
