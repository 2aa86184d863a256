import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** The page opens from disk too, where ES modules are refused: one classic script, loaded after the markup. */
const classic: Plugin = {
  name: 'classic-script',
  enforce: 'post',
  transformIndexHtml: {
    order: 'post',
    handler: (html) => html.replace(/<script type="module" crossorigin/g, '<script defer').replace(/ crossorigin/g, ''),
  },
}

export default defineConfig({
  base: './',
  plugins: [svelte(), classic],
  server: { proxy: { '/api': process.env.RHEOSCOPE_SERVER ?? 'http://127.0.0.1:8642' } },
  build: {
    outDir: '../src/rheoscope/studio/static',
    emptyOutDir: true,
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
