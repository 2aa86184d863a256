/** The notebook widget (anywidget): `render` draws the data of a cell and returns a function that removes it. */

import { mount, unmount } from 'svelte'

import { Client } from '../api'
import { Studio } from '../studio.svelte'
import { NO_HASH } from '../url_hash'
import { decodeNotebookData, NotebookSource } from './notebook_data'
import { hasDarkBackground, toShadowCss } from './shadow_style'
import Widget from './Widget.svelte'

export interface Cell { model: { get(name: 'data'): DataView }; el: HTMLElement; rules: string }

export function render({ model, el, rules }: Cell): () => void {
  const { trace, picture, files } = decodeNotebookData(model.get('data'))
  const studio: Studio = new Studio(new Client(new NotebookSource(files)), trace, NO_HASH)
  studio.dark = hasDarkBackground(el)
  studio.reducedMotion = matchMedia('(prefers-reduced-motion: reduce)').matches
  const host = document.createElement('div')
  host.dataset.theme = studio.dark ? 'dark' : 'light'
  host.addEventListener('keydown', (event) => event.stopPropagation()) // keys for the scrubber must not reach the notebook
  el.append(host)
  const root = host.attachShadow({ mode: 'open' })
  const style = document.createElement('style')
  style.textContent = toShadowCss(rules)
  root.append(style)
  const widget = mount(Widget, { target: root, props: { studio, picture } })
  void studio.loadLanguage()
  if (trace) void studio.start()
  return () => {
    studio.trace?.close()
    void unmount(widget)
    host.remove()
  }
}
