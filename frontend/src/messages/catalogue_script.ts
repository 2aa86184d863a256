/** Catalogues in the built page: a script per language, which a page from a server and one from disk can load. */

import { loadScript } from '../load_script'
import type { Catalogue } from './message'

declare global { var RHEOSCOPE_CATALOGUES: Record<string, Catalogue> | undefined }

/** A notebook includes the script of its language, so the catalogue may be there already. */
export async function loadCatalogueScript(language: string, fileName: string): Promise<Catalogue> {
  if (!globalThis.RHEOSCOPE_CATALOGUES?.[language]) await loadScript(fileName)
  const catalogue = globalThis.RHEOSCOPE_CATALOGUES?.[language]
  if (!catalogue) throw new Error(`could not load ${fileName}`)
  return catalogue
}
