import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

import { poCatalogues } from './vite_po_plugin'

/** Browsers refuse ES modules from disk, so the page is one classic script, loaded after the markup. */
const classicScript: Plugin = {
  name: 'classic-script',
  enforce: 'post',
  transformIndexHtml: {
    order: 'post',
    handler: (html) => html.replace(/<script type="module" crossorigin/g, '<script defer').replace(/ crossorigin/g, ''),
  },
}

export default defineConfig({
  base: './',
  plugins: [svelte(), poCatalogues(), classicScript],
  server: { proxy: { '/api': process.env.RHEOSCOPE_SERVER ?? 'http://127.0.0.1:8642' } },
  build: {
    outDir: '../src/rheoscope/studio/static',
    emptyOutDir: false, // it also contains the stored example; `npm run build` removes the old assets
    target: 'es2022',
    modulePreload: false,
    cssCodeSplit: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
      output: {
        format: 'iife',
        entryFileNames: 'assets/studio.js',
        assetFileNames: 'assets/studio[extname]',
      },
    },
  },
})
