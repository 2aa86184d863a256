/** Gettext catalogues (.po) as modules of the page. */

import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import type { Plugin } from 'vite'

import { parsePo } from './src/messages/parse_po'

/** A build puts each catalogue into a classic script of its own, because a page opened from disk cannot import modules. */
export const poCatalogues = (): Plugin => {
  let isBuild = false
  return {
    name: 'po-catalogues',
    configResolved(config) { isBuild = config.command === 'build' },
    load(id) {
      if (!id.endsWith('.po')) return null
      this.addWatchFile(id)
      const entries = JSON.stringify(parsePo(readFileSync(id, 'utf8')))
      if (!isBuild) return `export default async () => (${entries})`
      const language = basename(id, '.po')
      const fileName = `assets/messages-${language}.js`
      this.emitFile({ type: 'asset', fileName, source: `(globalThis.RHEOSCOPE_CATALOGUES ??= {}).${language} = ${entries}\n` })
      return `import { loadCatalogueScript } from '/src/messages/catalogue_script.ts'\nexport default () => loadCatalogueScript('${language}', '${fileName}')`
    },
  }
}
